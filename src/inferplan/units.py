"""Text with units to base units and back: the only module that knows a prefix. It knows no quantity by name.

Base units: B, B/s, FLOP, FLOP/s, s, W, J, Hz, USD, USD/h. Decimal prefixes mean powers of 1000, `KiB MiB GiB TiB`
powers of 1024. Integer rates are written `TOP/s`, which has the same base as `TFLOP/s`.
"""

from __future__ import annotations

import math
import re

from inferplan.errors import SpecError

_DECIMAL = {"": 1.0, "k": 1e3, "M": 1e6, "G": 1e9, "T": 1e12, "P": 1e15, "E": 1e18}
_SMALL = {"": 1.0, "m": 1e-3, "u": 1e-6, "µ": 1e-6, "n": 1e-9}  # noqa: RUF001
_BINARY = {"Ki": 1024.0, "Mi": 1024.0**2, "Gi": 1024.0**3, "Ti": 1024.0**4}


def _table() -> dict[str, tuple[float, str]]:
    table: dict[str, tuple[float, str]] = {}
    for base in ("B", "B/s"):
        for prefix, scale in {**_DECIMAL, **_BINARY}.items():
            table[prefix + base] = (scale, base)
    for base, spellings in {"FLOP": ("FLOP", "OP"), "FLOP/s": ("FLOP/s", "OP/s"), "Hz": ("Hz",), "W": ("W",), "J": ("J",)}.items():
        for spelling in spellings:
            for prefix, scale in {**_DECIMAL, **({"m": 1e-3} if base in "WJ" else {})}.items():
                table[prefix + spelling] = (scale, base)
    table |= {prefix + "s": (scale, "s") for prefix, scale in _SMALL.items()}
    table |= {"min": (60.0, "s"), "h": (3600.0, "s"), "d": (86400.0, "s"), "kWh": (3.6e6, "J"), "Wh": (3600.0, "J")}
    table |= {"USD": (1.0, "USD"), "USD/h": (1.0, "USD/h"), "$": (1.0, "USD"), "$/h": (1.0, "USD/h")}
    table |= {"B/token": (1.0, "B/token"), "tok/s": (1.0, "tok/s"), "kB/token": (1e3, "B/token"), "": (1.0, "")}
    return table


UNITS = _table()
EXAMPLES = {"B": "80 GiB", "B/s": "3.35 TB/s", "FLOP/s": "989 TFLOP/s", "s": "50 ms", "W": "700 W", "USD/h": "2.5 USD/h", "Hz": "1.98 GHz"}
_FORM = re.compile(r"\s*([+-]?(?:\d[\d_]*\.?\d*|\.\d+)(?:[eE][+-]?\d+)?)\s*([A-Za-zµ$/]*)\s*\Z")


def parse(text: object, unit: str) -> float:
    """A quantity in base units. `unit` is the base unit it must have: B, B/s, FLOP/s, s, W, USD, USD/h ...

    Raises SpecError for a missing or wrong unit, and for anything that is not a finite number above or at zero.

    >>> parse("3.35 TB/s", "B/s"), parse("80 GiB", "B"), parse("1979 TOP/s", "FLOP/s")
    (3350000000000.0, 85899345920.0, 1979000000000000.0)
    >>> parse("3.35 TB", "B/s")
    Traceback (most recent call last):
    inferplan.errors.SpecError: 3.35 TB: the unit 'TB' is not one of B/s, write it like '3.35 TB/s'
    """
    example = EXAMPLES.get(unit, f"1 {unit}")
    if not isinstance(text, str):
        raise SpecError(f"needs a number with its unit, like '{example}'", value=text)
    match = _FORM.match(text[:200])
    if not match:
        raise SpecError(f"needs a number with its unit, like '{example}'", value=text)
    number, suffix = float(match[1].replace("_", "")), match[2]
    scale, base = UNITS.get(suffix, (1.0, "?"))
    if base != unit:
        what = f"the unit '{suffix}' is not one of {unit}" if suffix else "the unit is missing"
        raise SpecError(f"{what}, write it like '{example}'", value=text)
    value = number * scale
    if not math.isfinite(value) or value < 0:
        raise SpecError("must be finite and not negative", value=text)
    return value


MIB, GIB = parse("1 MiB", "B"), parse("1 GiB", "B")


def bare(text: str) -> str | None:
    """The base unit of a text such as '3.35 TB/s', or None where it is not a number with a known unit.

    >>> bare("80 GiB"), bare("80 furlongs")
    ('B', None)
    """
    match = _FORM.match(text[:200])
    return UNITS[match[2]][1] if match and match[2] in UNITS else None


_SHOWN = {
    "B": ("EB", "PB", "TB", "GB", "MB", "kB", "B"),
    "B/s": ("PB/s", "TB/s", "GB/s", "MB/s", "kB/s", "B/s"),
    "FLOP": ("EFLOP", "PFLOP", "TFLOP", "GFLOP", "MFLOP", "kFLOP", "FLOP"),
    "FLOP/s": ("PFLOP/s", "TFLOP/s", "GFLOP/s", "MFLOP/s", "FLOP/s"),
    "s": ("h", "min", "s", "ms", "us", "ns"),
    "W": ("MW", "kW", "W", "mW"),
    "J": ("MJ", "kJ", "J", "mJ"),
    "Hz": ("GHz", "MHz", "kHz", "Hz"),
}
_SHOWN_BINARY = ("TiB", "GiB", "MiB", "KiB", "B")


def show(value: float, unit: str, *, digits: int = 3, binary: bool = False) -> str:
    """A number in base units as text with the fitting prefix; `digits` significant figures, integers kept whole.

    >>> show(3.35e12, "B/s"), show(85899345920, "B", binary=True), show(0.0042, "s"), show(0, "B")
    ('3.35 TB/s', '80.0 GiB', '4.20 ms', '0 B')
    """
    ladder = _SHOWN_BINARY if binary and unit == "B" else _SHOWN.get(unit, (unit,))
    if value == 0 or not math.isfinite(value):
        return f"{value:g} {ladder[-1]}".rstrip()
    step = next((u for u in ladder if abs(value) >= UNITS.get(u, (1.0, ""))[0]), ladder[-1])
    return f"{significant(value / UNITS.get(step, (1.0, ''))[0], digits)} {step}".rstrip()


def significant(value: float, digits: int = 3) -> str:
    """A plain decimal with `digits` significant figures and thousands separators, never an exponent below 1e15.

    >>> significant(1234.5), significant(0.012345), significant(7.0)
    ('1,234', '0.0123', '7.00')
    """
    if value == 0 or not math.isfinite(value):
        return f"{value:g}"
    places = max(0, digits - 1 - math.floor(math.log10(abs(value))))
    return f"{value:,.{places}f}"


def exact(value: float, unit: str) -> str:
    """The shortest text that `parse` reads back to the same number: what is written to files.

    >>> exact(3.35e12, "B/s"), parse(exact(1/3, "s"), "s") == 1/3
    ('3.35 TB/s', True)
    """
    binary = [u for u in _SHOWN_BINARY[:-1] if unit == "B"]
    for step in (*binary, *_SHOWN.get(unit, (unit,))):
        scaled = value / UNITS.get(step, (1.0, ""))[0]
        text = f"{scaled:.6g}"
        if 1 <= abs(scaled) < 1e5 and "e" not in text and parse(f"{text} {step}", unit) == value:
            return f"{text} {step}"
    return f"{value!r} {unit}".rstrip()
