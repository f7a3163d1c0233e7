"""What may be chosen for a replica: model, part, formats and split. Makes the list of them; knows no time and no price."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from itertools import product

from inferplan.errors import InferplanError, Unsupported
from inferplan.names import hardware as part_named
from inferplan.planner.goal import Goal
from inferplan.quantization.support import refusal
from inferplan.readers.opening import open_model
from inferplan.roofline.efficiency import Efficiency
from inferplan.specs.engine import Engine
from inferplan.specs.hardware import Accelerator, prices
from inferplan.specs.mixers import LatentAttention
from inferplan.specs.model import Model
from inferplan.specs.parallel import Parallel
from inferplan.specs.precision import Precision

NODE = 8  # devices of a node whose part joins none by a link of its own
WAYS = (1, 2, 4, 8, 16, 32, 64)


@dataclass(frozen=True)
class Kind:
    """A model in one precision on one part, under one engine: what splits are looked at together."""

    model: Model
    hardware: Accelerator
    precision: Precision
    dtype: str
    engine: Engine
    efficiency: Efficiency
    network: str | None = None

    @property
    def title(self) -> str:
        """Part and formats in words."""
        return f"{self.hardware.name}, {self.precision.name} weights, {self.precision.kv.name} KV"

    @cached_property
    def node(self) -> int:
        """Devices among which a split stays within one node."""
        return self.hardware.domain if self.hardware.domain > 1 else NODE

    def splits(self, goal: Goal) -> list[Parallel]:
        """Ways to spread it over at most as many devices as a replica may have, tensor parallel within a node."""
        s = goal.search
        routed = any(block.experts for block in self.model.blocks.values())
        latent = any(isinstance(m, LatentAttention) for b in self.model.blocks.values() for m in b.mixers)
        most = s.max_replica_gpus
        tps = s.tp or [t for t in WAYS if t <= min(most, self.node)]
        dps = s.dp or ([d for d in WAYS if d <= min(most, self.node)] if routed or latent else [1])
        found = []
        for tp, pp, dp in product(tps, s.pp, dps):
            if tp * pp * dp > most or pp > len(self.model.order):
                continue
            whole = tp * dp
            eps = [e for e in s.ep if whole % e == 0] if s.ep else ([1, whole] if routed and whole > 1 else [1])
            if dp > 1 and not s.ep:
                eps = [whole] if routed else [1]
            found += [Parallel(tp, pp, dp, ep) for ep in dict.fromkeys(eps)]
        return found


@dataclass(frozen=True)
class Candidate:
    """A replica that may be chosen; limits None: the engine's own."""

    kind: Kind
    parallel: Parallel
    max_num_seqs: int | None = None
    max_num_batched_tokens: int | None = None
    draft: str = ""
    pooled: str = ""

    @property
    def gpus(self) -> int:
        """Devices of a replica."""
        return int(self.parallel.gpus)

    @property
    def split(self) -> str:
        """The split in the field's letters."""
        p = self.parallel
        parts = [("TP", p.tp), ("PP", p.pp), ("DP", p.dp), ("EP", p.ep)]
        return " ".join(f"{name}{int(n)}" for name, n in parts if n > 1) or "one device"

    @property
    def name(self) -> str:
        """All of it in words."""
        limits = [f"at most {self.max_num_seqs} requests at once"] if self.max_num_seqs else []
        limits += [f"{self.max_num_batched_tokens} tokens per step"] if self.max_num_batched_tokens else []
        limits += [text for text in (self.draft, self.pooled) if text]
        return ", ".join([self.kind.title, self.split, *limits])


def parts(goal: Goal) -> list[Accelerator]:
    """The parts that may be chosen: those named, else all with a price of the kinds asked for."""
    if goal.search.gpus is not None:
        return list({p.name: p for p in map(part_named, goal.search.gpus)}.values())
    m = goal.money
    listed = [p.gpu for p in prices() if p.usd_per_h is not None and p.price_type in m.kinds]
    found = {p.name: p for p in map(part_named, dict.fromkeys([*m.prices, *m.owned, *listed]))}
    return [p for p in found.values() if not p.is_cpu]


def kinds(goal: Goal) -> Iterator[tuple[Kind | None, str, str]]:
    """Every model, part and format that may be chosen, as (kind, title, reason): no kind where they do not go together."""
    s = goal.search
    engine = Engine.find(s.engine, s.engine_version)
    calibration = Efficiency.load(s.efficiency)
    every = parts(goal)
    for name in goal.model:
        opened = open_model(name)
        own = opened.stored if s.engine == "ideal" else opened.served
        seen: set[tuple[str, str, str]] = set()
        for part, dtype, kv in product(every, s.dtype, s.kv_dtype):
            wanted = own if dtype == "auto" else dtype
            precision = Precision.named(wanted, kv=None if kv == "auto" else kv)
            key = (part.name, precision.name, precision.kv.name)
            if key in seen:
                continue
            seen.add(key)
            kind = Kind(opened.told, part, precision, wanted, engine, calibration, s.network)
            try:
                _known(kind)
            except InferplanError as e:
                yield None, kind.title, str(e)
                continue
            yield kind, kind.title, ""


def _known(kind: Kind) -> None:
    """Raise Unsupported where a model makes no tokens, or a part has no peak for what the precision is computed in."""
    if not kind.model.generates:
        raise Unsupported(f"{kind.model.title} makes no tokens one by one")
    if why := refusal(kind.engine, kind.hardware, kind.precision):
        raise Unsupported(why)
