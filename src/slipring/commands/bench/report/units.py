"""Formats figures with three significant digits and a unit: 1.69 s, 359 kB, 31 %, 0.69×."""

from collections.abc import Callable

SPACE = "\N{NO-BREAK SPACE}"
DASH = "\N{EN DASH}"
MINUS = "\N{MINUS SIGN}"

Unit = tuple[float, str]
_MINUTE: Unit = (60_000.0, "min")
_TIMES: tuple[Unit, ...] = ((1.0, "ms"), (1_000.0, "s"))
_SIZES: tuple[Unit, ...] = ((1.0, "B"), (1e3, "kB"), (1e6, "MB"), (1e9, "GB"))
_COUNTS: tuple[Unit, ...] = ((1.0, ""), (1e3, "k"), (1e6, "M"))
_FACTORS = {name: factor for factor, name in (*_TIMES, _MINUTE, *_SIZES)}


def duration(ms: float) -> str:
    return _format(ms, _MINUTE if ms >= 10 * _MINUTE[0] else time_unit(ms))


def size(count: float) -> str:
    """Bytes; 1 kB is 1000 bytes."""
    return _format(count, size_unit(count))


def tokens(count: float) -> str:
    """12.3k: short enough for the label of a tick."""
    factor, name = _unit(count, _COUNTS)
    return f"{count / factor:.3g}{name}"


def percent(share: float) -> str:
    """Whole percents; tenths below 1 %."""
    hundredths = share * 100
    digits = f"{hundredths:.0f}" if abs(hundredths) >= 0.95 or hundredths == 0 else f"{hundredths:.1f}"
    return f"{digits.replace('-', MINUS)}{SPACE}%"


def ratio(value: float) -> str:
    """Two decimals; two significant digits below 0.1."""
    if 0 < value < 0.001:
        return "<0.001\N{MULTIPLICATION SIGN}"
    digits = f"{value:.2f}" if value >= 0.095 or value == 0 else f"{value:.2g}"
    return f"{digits}\N{MULTIPLICATION SIGN}"


def shown_ratio(value: float, reference: float, format: Callable[[float], str]) -> float | None:
    """The ratio of two figures after rounding them as ``format`` (``duration`` or ``size``) does.

    A reader who divides the two figures of a table gets the ratio in that table. None if the reference is
    shown as 0.
    """
    divisor = _parse(format(reference))
    return _parse(format(value)) / divisor if divisor else None


def span(low: float, high: float, format: Callable[[float], str]) -> str:
    """4.1–4.4 s: the unit once if both have the same."""
    least, most = format(low), format(high)
    if least == most:
        return most
    number, _, unit = least.partition(SPACE)
    joint = f"{SPACE}to{SPACE}" if MINUS in least + most else DASH
    return f"{number if most.endswith(f'{SPACE}{unit}') else least}{joint}{most}"


def time_unit(highest_ms: float) -> Unit:
    """The unit for times up to ``highest_ms``."""
    return _unit(highest_ms, _TIMES)


def size_unit(highest: float) -> Unit:
    """The unit for sizes up to ``highest``."""
    return _unit(highest, _SIZES)


def _unit(highest: float, units: tuple[Unit, ...]) -> Unit:
    """The largest unit in which the value rounds to at least 1."""
    return next((unit for unit in reversed(units) if abs(highest) >= 0.9995 * unit[0]), units[0])


def _format(value: float, unit: Unit) -> str:
    scaled = value / unit[0]
    if scaled == 0 or abs(scaled) >= 99.95 or unit[1] == "B":
        digits = f"{scaled:.0f}"
    else:
        digits = f"{scaled:.2f}" if abs(scaled) < 9.995 else f"{scaled:.1f}"
    return f"{digits}{SPACE}{unit[1]}"


def _parse(text: str) -> float:
    number, _, unit = text.partition(SPACE)
    return float(number) * _FACTORS[unit]
