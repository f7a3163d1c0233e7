"""What a server command has to say, in our words: numbers of an estimate beside the options that a release has. Knows no flag."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from inferplan.deployment import Estimate
from inferplan.errors import SpecError, Unsupported
from inferplan.launch.nodes import Nodes
from inferplan.launch.table import Options, Wish
from inferplan.launch.weights import Weights
from inferplan.specs.precision import Format
from inferplan.speculation.drafts import Kind
from inferplan.units import GIB

ALONE = ("ngram", "mtp")
WAYS = {"pp": "pipeline stages", "dp": "data-parallel groups", "ep": "expert parallel ways", "dcp": "decode context parallel ways",
        "cp": "context parallel groups"}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Draft:
    """Who drafts in speculative decoding, how many tokens per round, and the checkpoint of it where it has one of its own."""

    kind: Kind
    tokens: int
    checkpoint: str = ""

    def checked(self) -> Draft:
        """The same, once it has the checkpoint that its kind needs and none that it does not; raises SpecError."""
        if not 1 <= self.tokens <= 256:
            raise SpecError("must lie between 1 and 256", field="draft_tokens", value=self.tokens)
        if self.kind in ALONE and self.checkpoint:
            raise SpecError(f"says nothing for {self.kind}, which has no checkpoint of its own", field="draft", value=self.checkpoint)
        if self.kind not in ALONE and not self.checkpoint:
            raise SpecError(f"must name the checkpoint of the {self.kind} draft: a Hub id or a path", field="draft_checkpoint")
        return self


@dataclass(frozen=True, slots=True)
class Plan:
    """An estimate, the options of the release that shall run it, the weights, the nodes and the port."""

    e: Estimate
    options: Options
    weights: Weights
    nodes: Nodes
    port: int
    draft: Draft | None = None

    def ways(self, name: str) -> int:
        """Devices or groups in one direction of the split: tp, pp, dp, ep, dcp or cp."""
        return int(np.max(getattr(self.e.setting.parallel, name)))

    @property
    def group(self) -> int:
        """Devices that share a layer's experts."""
        return int(np.max(self.e.setting.parallel.group))

    @property
    def length(self) -> int:
        """Tokens of the longest request."""
        return int(np.max(self.e.capacity.launch.max_model_len))

    @property
    def requests(self) -> int:
        """Requests at once in one attention group."""
        return int(np.max(self.e.capacity.launch.max_num_seqs))

    @property
    def step_tokens(self) -> int:
        """Tokens in a step of prefill."""
        return int(np.max(self.e.capacity.launch.max_num_batched_tokens))

    @property
    def utilization(self) -> str:
        """The share of memory, four decimals of it: a release's own rule may give more, which are cut off."""
        return f"{np.floor(float(np.max(self.e.capacity.launch.utilization)) * 1e4 + 1e-6) / 1e4:g}"

    @property
    def new_tokens(self) -> int:
        """Prompt tokens that no cache holds."""
        return self.e.load.input_tokens - self.e.load.cached

    @property
    def kv(self) -> Format:
        """The format of the cache."""
        return self.e.precision.kv

    def first(self) -> list[Wish]:
        """Where the weights are and where the server listens."""
        of = "file" if self.weights.is_file else "hub"
        name = f"{self.weights.name}:{self.weights.tag}" if self.weights.tag else self.weights.name
        return [Wish("model", name, of), Wish("host", "0.0.0.0"), Wish("port", self.port)]  # noqa: S104 - a server for others

    def formats(self) -> list[Wish]:
        """The type of plain weights, the format into which the engine quantises, and the cache where it is not in the weights' type."""
        p, named = self.e.precision, self.kv.name
        wishes = []
        if self.weights.online:
            wishes.append(Wish("online", of=self.weights.online, what=f"quantising to {self.weights.online} while it loads"))
        elif not p.weights.quantised and not p.overrides:
            wishes.append(Wish("dtype", of=p.weights.name, what=f"weights in {p.weights.name}"))
        if self.kv.quantised:
            wishes.append(Wish("kv", of=named, what=f"a cache in {named}"))
        elif not p.weights.quantised and named != p.weights.name:
            raise Unsupported(f"{self.options.title} keeps a 16-bit cache in the type of the weights, {p.weights.name}, not in {named}")
        return wishes

    def split(self, *names: str) -> list[Wish]:
        """The ways of the split that are more than one."""
        return [Wish(n, self.ways(n), what=f"{WAYS.get(n, 'tensor parallel')} (--{n} {self.ways(n)})") for n in names if self.ways(n) > 1]

    def experts(self) -> list[Wish]:
        """Expert parallelism: over the whole group, or over a part of it."""
        ep = self.ways("ep")
        of = "group" if ep == self.group else "part"
        what = f"experts dealt out {ep} ways, where the group has {self.group} devices" if of == "part" else f"--ep {ep}"
        return [Wish("ep", ep, of, what)] if ep > 1 else []

    def host(self) -> list[Wish]:
        """Weights per device that lie in host memory, in GiB."""
        if not self.e.capacity.offload.any:
            return []
        size = float(np.max(self.e.capacity.host_bytes)) / self.e.gpus / GIB
        return [Wish("cpu_offload_gib", f"{size:.6g}", what="weights in host memory (--cpu-offload)")]
