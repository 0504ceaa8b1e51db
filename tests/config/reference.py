"""Prints the table of settings for docs/settings.md: ``python -m tests.config.reference``.

The limits are on a page of their own, docs/compatibility/limits.md.
"""

from slipring.config.settings import SETTINGS, Setting


def _default_cell(setting: Setting) -> str:
    return "none" if setting.default in ((), "") else f"`{setting.default_text}`"


def _flag_cell(setting: Setting) -> str:
    if setting.kind is bool:
        return f"`{setting.flag}`, `--no-{setting.flag[2:]}`"
    repeatable = ", repeatable" if setting.kind is tuple else ""
    return f"`{setting.flag} {setting.metavar}`{repeatable}"


def _row(setting: Setting) -> str:
    cells = (
        f"`{setting.name}`",
        _flag_cell(setting),
        f"`{setting.variable}`",
        f"`{'.'.join(setting.key)}`",
        _default_cell(setting),
        setting.help,
    )
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"


def reference() -> str:
    """Return the Markdown table."""
    head = "| Setting | Flag | Environment | TOML | Default | Meaning |"
    rule = "| --- | --- | --- | --- | --- | --- |"
    return "\n".join((head, rule, *(_row(each) for each in SETTINGS if not each.is_limit)))


if __name__ == "__main__":
    print(reference())
