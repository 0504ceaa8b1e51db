"""Prints the table of all settings for docs/settings.md: ``python -m tests.config.reference``."""

from slipring.config.settings import SETTINGS, Setting


def _size_text(number: int) -> str:
    """Return ` (16 MiB)` if a number of bytes is a multiple of 1 MiB or 1 KiB, else an empty string."""
    for unit, name in ((1024**2, "MiB"), (1024, "KiB")):
        if number % unit == 0:
            return f" ({number // unit} {name})"
    return ""


def _default_cell(setting: Setting) -> str:
    if setting.default in ((), ""):
        return "none"
    size = _size_text(setting.default) if setting.name.endswith("_bytes") else ""
    return f"`{setting.default_text}`{size}"


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
    """Return the Markdown table of all settings."""
    head = "| Setting | Flag | Environment | TOML | Default | Meaning |"
    rule = "| --- | --- | --- | --- | --- | --- |"
    return "\n".join((head, rule, *map(_row, SETTINGS)))


if __name__ == "__main__":
    print(reference())
