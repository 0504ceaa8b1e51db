"""Names, numbers, sizes and times as the screen shows them."""

_MOST = 10**15
"""Larger values are shown as this one."""


def visible(text: str) -> str:
    """A name on one line, without characters that control a terminal: clients choose names."""
    if text.isprintable():
        return text
    return "".join(char if char.isprintable() else ascii(char)[1:-1] for char in text)


def count(number: float) -> str:
    """``940``, ``12,400``, ``1.2 M``."""
    number = _clamped(number)
    for unit, size in (("T", 10**12), ("G", 10**9), ("M", 10**6)):
        if number >= size:
            return f"{number / size:.1f} {unit}"
    return f"{number:,.0f}"


def rate(per_second: float) -> str:
    """``0.3/s``, ``12/s``, ``1,240/s``."""
    per_second = _clamped(per_second)
    return f"{per_second:.1f}/s" if 0 < per_second < 10 else f"{count(per_second)}/s"


def size(number: float) -> str:
    """``512 B``, ``1.2 KiB``, ``340 MiB``."""
    number = _clamped(number)
    if number < 1024:
        return f"{number:.0f} B"
    for unit in ("KiB", "MiB", "GiB"):
        number /= 1024
        if number < 1000:
            return f"{number:.{0 if number >= 100 else 1}f} {unit}"
    return f"{number / 1024:.1f} TiB"


def duration(seconds: float) -> str:
    """``34 ms``, ``2.4 s``, ``42 s``, ``3m 12s``, ``2h 05m``, ``3d 4h``."""
    seconds = _clamped(seconds)
    if seconds < 0.9995:
        return f"{seconds * 1000:.0f} ms"
    if seconds < 9.95:
        return f"{seconds:.1f} s"
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60}m {whole % 60:02}s"
    if whole < 86_400:
        return f"{whole // 3600}h {whole % 3600 // 60:02}m"
    return f"{whole // 86_400}d {whole % 86_400 // 3600}h"


def share(part: float, whole: float) -> str:
    """``87 %``; ``–`` of nothing."""
    part, whole = _clamped(part), _clamped(whole)
    return f"{100 * min(part / whole, 1):.0f} %" if whole > 0 else "–"


def _clamped(number: float) -> float:
    """From 0 to ``_MOST``; 0 for what is not a number."""
    return min(max(number, 0), _MOST) if number == number else 0
