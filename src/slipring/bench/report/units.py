"""Figures as people read them: three digits, and a unit. Knows nothing of what the figures are about."""

from collections.abc import Callable

SPACE = "\N{NO-BREAK SPACE}"
DASH = "\N{EN DASH}"
MINUS = "\N{MINUS SIGN}"
MINUTE_MS = 60_000.0

Unit = tuple[float, str]
_TIMES: tuple[Unit, ...] = ((1.0, "ms"), (1_000.0, "s"))
_SIZES: tuple[Unit, ...] = ((1.0, "B"), (1e3, "kB"), (1e6, "MB"), (1e9, "GB"))
_COUNTS: tuple[Unit, ...] = ((1.0, ""), (1e3, "k"), (1e6, "M"))


def duration(ms: float) -> str:
    if ms >= 10 * MINUTE_MS:
        return (
            f"{ms / MINUTE_MS:.3g}{SPACE}min" if ms < 1000 * MINUTE_MS else f"{ms / MINUTE_MS:.0f}{SPACE}min"
        )
    return _told(ms, time_unit(ms))


def size(count: float) -> str:
    return _told(count, size_unit(count))


def tokens(count: float) -> str:
    """12.3k: short enough for a tick of an axis."""
    factor, name = _unit(count, _COUNTS)
    return f"{count / factor:.3g}{name}"


def percent(share: float) -> str:
    """Whole ones, and tenths where there is less than one."""
    hundredths = share * 100
    digits = f"{hundredths:.0f}" if abs(hundredths) >= 0.95 or hundredths == 0 else f"{hundredths:.1f}"
    return f"{digits.replace('-', MINUS)}{SPACE}%"


def ratio(value: float) -> str:
    digits = f"{value:.2f}" if value >= 0.095 else f"{value:.2g}"
    return f"{digits}\N{MULTIPLICATION SIGN}"


def span(low: float, high: float, tell: Callable[[float], str]) -> str:
    """4.1–4.4 s: the unit once, where it is the same."""
    least, most = tell(low), tell(high)
    if least == most:
        return most
    number, _, unit = least.partition(SPACE)
    joint = f"{SPACE}to{SPACE}" if MINUS in least + most else DASH
    return f"{number if most.endswith(f'{SPACE}{unit}') else least}{joint}{most}"


def time_unit(highest_ms: float) -> Unit:
    """In which to tell times of which this is the longest."""
    return _unit(highest_ms, _TIMES)


def size_unit(highest: float) -> Unit:
    return _unit(highest, _SIZES)


def _unit(highest: float, units: tuple[Unit, ...]) -> Unit:
    """The largest that leaves something before the point, once it is rounded."""
    return next((unit for unit in reversed(units) if abs(highest) >= 0.9995 * unit[0]), units[0])


def _told(value: float, unit: Unit) -> str:
    scaled = value / unit[0]
    if scaled == 0 or abs(scaled) >= 99.95 or unit[1] == "B":
        digits = f"{scaled:.0f}"
    else:
        digits = f"{scaled:.2f}" if abs(scaled) < 9.995 else f"{scaled:.1f}"
    return f"{digits}{SPACE}{unit[1]}"
