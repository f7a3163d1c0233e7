"""Text with units to base units and back."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from inferplan import units
from inferplan.errors import SpecError

BASES = ["B", "B/s", "FLOP", "FLOP/s", "s", "W", "J", "Hz", "USD", "USD/h"]
positive = st.floats(min_value=1e-12, max_value=1e24, allow_nan=False, allow_infinity=False)


@given(positive, st.sampled_from(BASES))
def test_exact_is_read_back_to_the_same_number(value, unit):
    assert units.parse(units.exact(value, unit), unit) == value


@given(positive, st.sampled_from(BASES))
def test_shown_text_is_within_its_digits(value, unit):
    text = units.show(value, unit, digits=4).replace(",", "")
    assert units.parse(text, unit) == pytest.approx(value, rel=1e-3)


@pytest.mark.parametrize(
    ("text", "unit", "value"),
    [
        ("80 GiB", "B", 80 * 1024**3),
        ("80 GB", "B", 80e9),
        ("81559 MiB", "B", 81559 * 1024**2),
        ("3.35 TB/s", "B/s", 3.35e12),
        ("1979 TOP/s", "FLOP/s", 1979e12),
        ("2 us", "s", 2e-6),
        ("1980 MHz", "Hz", 1.98e9),
        ("2.5 USD/h", "USD/h", 2.5),
        ("1e3 W", "W", 1000.0),
    ],
)
def test_parse(text, unit, value):
    assert units.parse(text, unit) == pytest.approx(value, rel=1e-15)


@pytest.mark.parametrize(
    ("text", "unit", "words"),
    [
        (3.35, "B/s", "needs a number with its unit, like '3.35 TB/s'"),
        ("3.35", "B/s", "the unit is missing"),
        ("3.35 TB", "B/s", "'TB' is not one of B/s"),
        ("80 Gb", "B", "'Gb' is not one of B"),
        ("-1 W", "W", "must be finite and not negative"),
        ("1e400 W", "W", "must be finite"),
        ("inf W", "W", "needs a number"),
        ("1 furlong", "s", "'furlong' is not one of s"),
        ("", "B", "needs a number"),
        (None, "B", "needs a number"),
        ("1_0.0.0 B", "B", "needs a number"),
    ],
)
def test_refusals_say_the_right_form(text, unit, words):
    with pytest.raises(SpecError, match=".*") as e:
        units.parse(text, unit)
    assert words in str(e.value)
    assert "\n" not in str(e.value)


def test_binary_and_decimal_are_told_apart():
    assert units.parse("1 TiB", "B") / units.parse("1 TB", "B") == pytest.approx(1.0995, rel=1e-4)
    assert units.show(80 * 1024**3, "B", binary=True) == "80.0 GiB"
    assert units.show(80 * 1024**3, "B") == "85.9 GB"


def test_significant_never_writes_an_exponent():
    for value in (1e-9, 0.00123, 1.0, 123456.0, 1e14):
        text = units.significant(value)
        assert "e" not in text
        assert float(text.replace(",", "")) == pytest.approx(value, rel=5e-3)
    assert math.isinf(float(units.significant(math.inf)))
