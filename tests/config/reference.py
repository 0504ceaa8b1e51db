"""Prints the tables of all settings for docs/settings.md: ``python -m tests.config.reference``.

Flag, variable and TOML key of a limit follow from its name, so that its row names none of them.
"""

from slipring.config.settings import SETTINGS, Setting


def _default_cell(setting: Setting) -> str:
    if setting.default in ((), ""):
        return "none"
    if setting.name.endswith("_bytes"):
        return next(
            f"{setting.default // unit} {name}"
            for unit, name in ((1024**2, "MiB"), (1024, "KiB"), (1, "bytes"))
            if setting.default % unit == 0
        )
    return f"`{setting.default_text}`"


def _flag_cell(setting: Setting) -> str:
    if setting.kind is bool:
        return f"`{setting.flag}`, `--no-{setting.flag[2:]}`"
    repeatable = ", repeatable" if setting.kind is tuple else ""
    return f"`{setting.flag} {setting.metavar}`{repeatable}"


def _row(*cells: str) -> str:
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"


def _setting_row(setting: Setting) -> str:
    names = f"`{setting.variable}`", f"`{'.'.join(setting.key)}`"
    return _row(f"`{setting.name}`", _flag_cell(setting), *names, _default_cell(setting), setting.help)


def _limit_row(setting: Setting) -> str:
    return _row(f"`{setting.name}`", _default_cell(setting), setting.help)


def reference() -> str:
    """Return the Markdown tables of all settings: those that are no limits, then the limits."""
    settings = [_setting_row(each) for each in SETTINGS if not each.is_limit]
    limits = [_limit_row(each) for each in SETTINGS if each.is_limit]
    return "\n".join(
        (
            "| Setting | Flag | Environment | TOML | Default | Meaning |",
            "| --- | --- | --- | --- | --- | --- |",
            *settings,
            "",
            "| Limit | Default | Meaning |",
            "| --- | --- | --- |",
            *limits,
        )
    )


if __name__ == "__main__":
    print(reference())
