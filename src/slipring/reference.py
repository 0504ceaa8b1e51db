"""The table of all settings that docs/configuration.md shows: ``python -m slipring.reference``."""

from slipring.config import SETTINGS, Setting


def _size_text(number: int) -> str:
    """` (16 MiB)` for a number of bytes that is a whole number of MiB or KiB, else nothing."""
    for unit, name in ((1024**2, "MiB"), (1024, "KiB")):
        if number % unit == 0:
            return f" ({number // unit} {name})"
    return ""


def _default_cell(setting: Setting) -> str:
    if setting.default == ():
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
    """The Markdown table of all settings that docs/configuration.md shows."""
    head = "| Setting | Flag | Environment | TOML | Default | Meaning |"
    rule = "| --- | --- | --- | --- | --- | --- |"
    return "\n".join((head, rule, *map(_row, SETTINGS)))


if __name__ == "__main__":
    print(reference())
