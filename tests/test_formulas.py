"""Each formula's text, evaluated, equals its function on random inputs; scalar and array calls agree."""

import importlib
import pkgutil
import zlib

import numpy as np
import pytest

import inferplan.ops
from inferplan.formula import FORMULAS, formula, trace

for module in pkgutil.iter_modules(inferplan.ops.__path__, "inferplan.ops."):
    importlib.import_module(module.name)

NAMES = [name for name, f in FORMULAS.items() if f.function.__module__.startswith("inferplan.")]


def values(name, rng, size=None):
    return {a: rng.integers(1, 50, size).astype(float) if size else float(rng.integers(1, 50)) for a in FORMULAS[name].arguments}


def test_there_are_formulas():
    assert {"gemm_flops", "attention_flops", "distinct_experts", "window_pairs"} <= set(NAMES)


@pytest.mark.parametrize("name", NAMES)
def test_text_is_the_function(name):
    rng = np.random.default_rng(zlib.crc32(name.encode()))
    for _ in range(50):
        given = values(name, rng)
        assert FORMULAS[name].function(**given) == pytest.approx(FORMULAS[name].evaluate(**given), rel=1e-12, abs=1e-9)


@pytest.mark.parametrize("name", NAMES)
def test_vector_equals_scalar(name):
    rng = np.random.default_rng(7)
    given = values(name, rng, 20)
    whole = FORMULAS[name].function(**given)
    each = [FORMULAS[name].function(**{a: float(v[i]) for a, v in given.items()}) for i in range(20)]
    np.testing.assert_allclose(whole, each, rtol=1e-12)


@pytest.mark.parametrize("name", NAMES)
def test_states_unit_and_reference(name):
    assert FORMULAS[name].unit
    assert FORMULAS[name].ref


def test_trace_links_results_to_what_made_them():
    @formula("a + b", unit="1", ref="test")
    def total(a, b):
        return a + b

    @formula("2 * c", unit="1", ref="test")
    def double(c):
        return 2 * c

    try:
        with trace() as found:
            inner = total(1000.5, 2.0)
            outer = double(inner)
        record = found.of(outer)
        assert record.formula.name == "double"
        assert record.made_by["c"].formula.name == "total"
        assert record.made_by["c"].inputs == {"a": 1000.5, "b": 2.0}
        assert found.of(3.25) is None
        double(1.0)
        assert len(found.records) == 2, "a closed trace records nothing"
    finally:
        FORMULAS.pop("total"), FORMULAS.pop("double")
