"""What a calibration can be fitted in: factors on what a part's kernels reach and on what an engine adds. Knows no measured value.

A part has two, on the shares of bandwidth and of peak that all its kernels reach; an engine has one for each time that it adds to a step or
to a prompt. Factors are of what the base calibration says, so that rows of one deployment carry over to others of the same part or engine.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np

from inferplan.deployment import Estimate
from inferplan.roofline.efficiency import ALIASES, Added, Efficiency, Entry, Overhead, variant
from inferplan.specs.catalog import normalise

Kind = Literal["bandwidth", "compute", "engine"]
PART_SPREADS = {"bandwidth": 0.25, "compute": 0.35}
ENGINE_SPREADS = {
    "launch": 0.5, "per_step": 0.7, "per_sequence": 0.7, "collectives": 0.3, "per_expert_layer": 1.0, "per_recurrent_layer": 1.0,
    "per_prompt_layer": 1.0, "per_input_token": 1.0, "per_prompt": 1.0,
}  # fmt: skip
"""How far a factor may lie from 1 before the rows have spoken: the standard deviation of its logarithm."""


@dataclass(frozen=True, slots=True)
class Parameter:
    """One factor: of a part's `bandwidth` or `compute` shares, or of a named time of an `engine`. `spread` is its prior's."""

    kind: Kind
    owner: str
    field: str
    spread: float

    @property
    def name(self) -> str:
        """What screens and files call it.

        >>> Parameter("engine", "vllm", "per_step", 0.7).name
        'vllm per_step'
        """
        return f"{self.owner} {self.field}"


@dataclass(frozen=True, slots=True, order=True)
class Kernel:
    """A kernel that the rows use: on which part, of what kind, in which variant.

    engine, family
        the engine whose own kernel it is, and the name of its entry there; both '' for those that engines share.
    """

    part: str
    architecture: str
    kind: str
    variant: str
    engine: str = ""
    family: str = ""

    @property
    def key(self) -> str:
        """The name under which an entry of its own goes before all others."""
        return self.family or self.variant

    def entry(self, of: Efficiency) -> Entry:
        """What a calibration says of it."""
        return of.entry(self.kind, self.variant, self.architecture, self.part, engine=self.engine, family=self.family)


def kernels_of(e: Estimate) -> set[Kernel]:
    """The kernels of a deployment's prefill and decode steps on its device; those that lie in host memory count as the host's."""
    found = set()
    for op in (*e.prefill.ops, *e.decode.ops):
        part = e.setting.host if op.hosted and e.setting.offload.computed and e.setting.host is not None else e.hardware
        if op.kind != "collective":
            rate = "none" if op.rate == "none" else part.computed_in(op.rate)
            kind = ALIASES.get(op.kind, op.kind)
            shared = Kernel(part.name, part.architecture, kind, variant(kind, rate, op.stored or None))
            found.add(_own(shared, e.setting.efficiency.kernel_of(op, part, stored=op.stored or None, engine=e.setting.engine).origin, e))
    return found


def _own(shared: Kernel, origin: str, e: Estimate) -> Kernel:
    """The kernel as one of the engine's own, under the name its entry has there, where it ships this kernel itself."""
    engine = normalise(e.setting.engine)
    place = f"{e.setting.engine}.{shared.kind}."
    if engine not in e.setting.efficiency.engine_kernels or not origin.startswith(place):
        return shared
    return replace(shared, engine=engine, family=origin.removeprefix(place).split(".")[0])


def parameters_of(estimates: Iterable[Estimate], base: Efficiency) -> list[Parameter]:
    """The factors that could matter to deployments; a time of which the base says 0 has none."""
    seen = list(estimates)
    parts = sorted({kernel.part for e in seen for kernel in kernels_of(e)})
    found = [Parameter(kind, part, kind, spread) for part in parts for kind, spread in PART_SPREADS.items()]  # type: ignore[arg-type]
    for engine in sorted({e.setting.engine for e in seen}):
        of_engine = [e for e in seen if e.setting.engine == engine]
        own = [base.overhead(engine, e.hardware.architecture) for e in of_engine]
        for field, spread in ENGINE_SPREADS.items():
            if any(getattr(added, field) for added in own) and _matters(field, of_engine):
                found.append(Parameter("engine", engine, field, spread))
    return found


def _matters(field: str, estimates: list[Estimate]) -> bool:
    if field == "collectives":
        return any(e.gpus > 1 for e in estimates)
    kinds = {"per_expert_layer": "experts", "per_recurrent_layer": "recurrence"}
    return field not in kinds or any(float(np.asarray(e.decode.layers_of(kinds[field]))) > 0 for e in estimates)


def scaled(base: Efficiency, kernels: Iterable[Kernel], factors: Mapping[Parameter, float]) -> Efficiency:
    """The base with factors applied: entries of their own for the kernels of each part, and for each engine."""
    by_part = {(p.owner, p.kind): x for p, x in factors.items() if p.kind != "engine"}
    shared, own = _copied(base.kernels), {engine: _copied(kinds) for engine, kinds in base.engine_kernels.items()}
    for kernel in kernels:
        factor = [by_part.get((kernel.part, name), 1.0) for name in ("compute", "bandwidth")]
        table = own[kernel.engine] if kernel.engine else shared
        table.setdefault(kernel.kind, {}).setdefault(kernel.key, {})[kernel.part] = _times(kernel.entry(base), *factor)
    return base.model_copy(update={"kernels": shared, "engine_kernels": own, "engines": {**base.engines, **_engines(base, factors)}})


Table = dict[str, dict[str, dict[str, Entry]]]


def _copied(table: Table) -> Table:
    return {kind: {name: dict(levels) for name, levels in variants.items()} for kind, variants in table.items()}


def _times(entry: Entry, compute: float, bandwidth: float) -> Entry:
    """An entry and those of single engines in it; shares stay at most 1."""

    def own(fitted: Entry) -> dict[str, float]:
        return {"eff_flops": min(1.0, fitted.eff_flops * compute), "eff_bandwidth": min(1.0, fitted.eff_bandwidth * bandwidth)}

    engines = {name: fitted.model_copy(update={**own(fitted), **FRESH}) for name, fitted in entry.engines.items()}  # type: ignore[arg-type]
    return entry.model_copy(update={**own(entry), **FRESH, "engines": engines})


FRESH = {"basis": "measured", "rows": None, "error": None, "held_out": None, "note": None}


def _engines(base: Efficiency, factors: Mapping[Parameter, float]) -> dict[str, Overhead]:
    found: dict[str, Overhead] = {}
    for parameter, factor in factors.items():
        if parameter.kind == "engine":
            own = found.get(parameter.owner) or base.overheads(parameter.owner)
            parts = {level: added.model_copy(update=_scaled(added, parameter.field, factor)) for level, added in own.parts.items()}
            found[parameter.owner] = own.model_copy(update={**_scaled(own, parameter.field, factor), "parts": parts})
    return found


def _scaled(added: Added, field: str, factor: float) -> dict[str, Any]:
    new = min(getattr(added, field) * factor, 10.0)
    new = max(new, 1.0) if field == "collectives" else new
    return {field: new, **{name: value for name, value in FRESH.items() if name != "held_out"}}
