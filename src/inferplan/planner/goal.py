"""What a plan must reach: traffic, lengths, limits, safety, what may be chosen, money. Reads files of goals; knows no time of a model."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field, field_validator, model_validator

from inferplan.errors import SpecError
from inferplan.planner.cost import HOURS_PER_MONTH
from inferplan.planner.demand import MAX_MONTHS, WINDOW_S, Demand, peak_over_mean, user_rate_per_s, windowed_rates_per_s
from inferplan.planner.redundancy import Redundancy
from inferplan.planner.targets import Targets
from inferplan.serving.batch_times import Workload
from inferplan.serving.lengths import Lengths
from inferplan.serving.traces import read_trace
from inferplan.specs.base import Record, Spec
from inferplan.specs.quantity import refusal

Positive = Annotated[float, Field(gt=0, le=1e12)]
Share = Annotated[float, Field(ge=0, le=1)]
Count = Annotated[int, Field(ge=1, le=10**6)]
Counts = Annotated[list[Count], Field(min_length=1)]
Word = Annotated[str, Field(min_length=1, max_length=4096)]
Words = Annotated[list[Word], Field(min_length=1)]
MAX_RATE = 1e9


class Traffic(Record):
    """How much is asked.

    rate_per_s, users, trace
        one of them: requests per second in the mean; people, of whom `active_share` send `requests_per_user_min` each; or a file of
        requests, from which mean, peak and lengths come.
    peak_per_s, peak_factor, profile
        at most one of them: the highest rate, or how many times the mean it is, or rates over a period in equal steps.
    growth_per_month, months
        compound growth, and the months until the day that is planned for.
    window_s
        over which the peak of a trace is counted.
    """

    rate_per_s: Annotated[float, Field(gt=0, le=MAX_RATE)] | None = None
    peak_per_s: Annotated[float, Field(gt=0, le=MAX_RATE)] | None = None
    peak_factor: Annotated[float, Field(ge=1, le=1e4)] | None = None
    profile: list[Annotated[float, Field(ge=0, le=MAX_RATE)]] | None = None
    users: Positive | None = None
    active_share: Annotated[float, Field(gt=0, le=1)] = 0.2
    requests_per_user_min: Annotated[float, Field(gt=0, le=1e4)] = 0.4
    trace: str | None = None
    limit: Count | None = None
    window_s: Annotated[float, Field(gt=0, le=86400)] = WINDOW_S
    growth_per_month: Annotated[float, Field(gt=-1, le=10)] = 0.0
    months: Annotated[float, Field(ge=0, le=MAX_MONTHS)] = 0.0

    @model_validator(mode="after")
    def _one_of_each(self) -> Traffic:
        said = [n for n in ("rate_per_s", "users", "trace") if getattr(self, n) is not None]
        if len(said) != 1:
            rule = f"give one of rate_per_s, users and trace; {'there are ' + ' and '.join(said) if said else 'there is none'}"
            raise refusal(SpecError(rule))
        self._idle()
        peaks = [n for n in ("peak_per_s", "peak_factor", "profile") if getattr(self, n) is not None]
        if len(peaks) > 1 or (peaks and self.trace):
            raise refusal(SpecError("says the peak a second time", field=peaks[-1], value=getattr(self, peaks[-1])))
        if self.profile is not None:
            _refusing(peak_over_mean, self.profile)
        if self.peak_per_s is not None and self.peak_per_s < self.mean_per_s * (1 - 1e-9):
            raise refusal(SpecError("must not be below the mean rate", field="peak_per_s", value=self.peak_per_s))
        return self

    def _idle(self) -> None:
        """Raise for a field that the kind of traffic makes no use of."""
        needs = {"limit": "trace", "window_s": "trace", "active_share": "users", "requests_per_user_min": "users"}
        for name, other in needs.items():
            if name in self.model_fields_set and getattr(self, other) is None:
                raise refusal(SpecError(f"needs {other}", field=name, value=getattr(self, name)))

    @property
    def mean_per_s(self) -> float:
        """Requests per second in the mean, of a rate or of users."""
        if self.rate_per_s is not None:
            return self.rate_per_s
        return float(user_rate_per_s(self.users or 0.0, self.active_share, self.requests_per_user_min))


class Sizes(Record):
    """Lengths of requests: laws as `serving.lengths` reads them, and the share of a prompt that a prefix cache holds already."""

    input: str = "1024"
    output: str = "256"
    hit_rate: Annotated[float, Field(ge=0, lt=1)] = 0.0

    @field_validator("input", "output", mode="before")
    @classmethod
    def _law(cls, raw: Any) -> str:
        text = str(raw) if isinstance(raw, int) and not isinstance(raw, bool) else raw
        if not isinstance(text, str):
            raise refusal(SpecError("must be a length or a law of lengths, such as 512 or lognormal:512,1500", value=raw))
        _refusing(Lengths.parse, text, "")
        return text


class Safety(Record):
    """What is kept in hand, three things apart.

    queueing
        the share of the rate at which a replica just keeps the limits that is planned on it.
    redundancy, zones, node_availability
        for failures: none, n+1, n+2/zone, zone, or p>=0.999 with the availability of a node.
    buffer
        beyond the peak, for growth that no forecast sees.
    """

    queueing: Annotated[float, Field(gt=0, le=1)] = 0.85
    redundancy: str = "n+1"
    zones: Annotated[int, Field(ge=1, le=100)] = 1
    node_availability: Annotated[float, Field(gt=0, le=1)] | None = None
    buffer: Annotated[float, Field(ge=0, le=100)] = 0.0

    @model_validator(mode="after")
    def _reads(self) -> Safety:
        _refusing(Redundancy.parse, self.redundancy, zones=self.zones, up=self.node_availability)
        return self

    @property
    def rule(self) -> Redundancy:
        """The redundancy."""
        return Redundancy.parse(self.redundancy, zones=self.zones, up=self.node_availability)


class Draft(Record):
    """Speculative decoding that may be switched on: who drafts, how many tokens, and with what chance each is kept."""

    name: str
    tokens: Annotated[int, Field(ge=1, le=16)] = 3
    accept: Annotated[float, Field(gt=0, lt=1)]


class Measured(Record):
    """A replica that was measured instead of estimated: the rate at which it just keeps the limits, or its tokens per second."""

    rate_per_s: Positive | None = None
    tokens_per_s: Positive | None = None
    gpus: Count = 1
    source: str = "given"

    @model_validator(mode="after")
    def _one(self) -> Measured:
        if (self.rate_per_s is None) == (self.tokens_per_s is None):
            raise refusal(SpecError("give one of rate_per_s and tokens_per_s"))
        return self


class Search(Record):
    """What may be chosen; a list is tried in full, what is left out is chosen here.

    gpus
        parts; unsaid: every part with a price of the kinds asked for.
    tp, pp, dp, ep
        ways to split; unsaid: powers of two within `max_replica_gpus` devices, groups and dealt-out experts for models with experts.
    max_num_seqs, max_num_batched_tokens
        requests at once and tokens per step, beside the engine's own.
    max_gpus
        devices of the whole fleet, spares included.
    disaggregated
        whether pools for prefill and decode are looked at beside replicas that do both.
    transfer_bytes_per_s, transfer_s
        of a cache from one pool to the other, per device of a replica, and what each transfer takes beside.
    """

    gpus: Words | None = None
    dtype: Words = ["auto"]
    kv_dtype: Words = ["auto"]
    engine: str = "vllm"
    engine_version: str | None = None
    efficiency: str = "default"
    network: str | None = None
    tp: Counts | None = None
    pp: Counts = [1]
    dp: Counts | None = None
    ep: Counts | None = None
    max_replica_gpus: Annotated[int, Field(ge=1, le=1024)] = 8
    max_num_seqs: Counts | None = None
    max_num_batched_tokens: Counts | None = None
    max_gpus: Count | None = None
    utilization: Annotated[float, Field(gt=0, le=1)] | None = None
    disaggregated: bool = False
    transfer_bytes_per_s: Positive = 50e9
    transfer_s: Annotated[float, Field(ge=0, le=60)] = 0.0
    draft: Draft | None = None
    objective: Literal["cost", "gpus", "energy"] = "cost"


class Owned(Record):
    """Devices that are bought: price of one (unsaid: the list price), years of use, devices of a node, further cost of an hour."""

    purchase_usd: Positive | None = None
    years: Annotated[float, Field(gt=0, le=30)] = 4.0
    node_gpus: Count = 8
    running_usd_per_h: Annotated[float, Field(ge=0, le=1e6)] = 0.0


class Money(Record):
    """Prices and energy.

    kinds, providers
        rows of the price list: on-demand, spot, reserved, capacity-block ...; unsaid providers: all.
    prices
        your own, USD per device and hour, by part; they go before the list. `node_gpus` devices are rented together.
    owned
        parts that are bought instead.
    idle_share
        power of an idle device over its rated one; 1 counts rated power all the time, which is an upper bound.
    """

    kinds: Words = ["on-demand"]
    providers: list[Word] = []
    prices: dict[str, Positive] = {}
    node_gpus: Count = 1
    owned: dict[str, Owned] = {}
    hours_per_month: Annotated[float, Field(gt=0, le=744)] = HOURS_PER_MONTH
    pue: Annotated[float, Field(ge=1, le=5)] = 1.3
    usd_per_kwh: Annotated[float, Field(ge=0, le=10)] = 0.12
    idle_share: Share = 1.0
    kg_co2_per_kwh: Annotated[float, Field(ge=0, le=5)] | None = None
    api_usd_per_million: Positive | None = None


class Proof(Record):
    """Simulation of the finalists: how many, runs with seeds of their own at first and at most, requests in each; 0 finalists: none."""

    finalists: Annotated[int, Field(ge=0, le=50)] = 3
    seeds: Annotated[int, Field(ge=3, le=100)] = 5
    most_seeds: Annotated[int, Field(ge=3, le=1000)] = 15
    requests: Annotated[int, Field(ge=100, le=10**6)] = 1500
    confidence: Annotated[float, Field(ge=0.5, le=0.999)] = 0.95
    seed: Annotated[int, Field(ge=0, le=2**31)] = 0


class Goal(Spec):
    """All that a plan is asked for.

    >>> g = Goal(model=["llama-3.1-8b"], traffic={"rate_per_s": 10.0}, slo="ttft.p95=500ms,tpot.p95=50ms")
    >>> g.targets.text, g.search.gpus
    ('TTFT p95 <= 500 ms, TPOT p95 <= 50.0 ms', None)
    """

    model: Words = []
    traffic: Traffic
    lengths: Sizes | None = None
    slo: str | None = None
    safety: Safety = Field(default_factory=Safety)
    search: Search = Field(default_factory=Search)
    money: Money = Field(default_factory=Money)
    proof: Proof = Field(default_factory=Proof)
    measured: Measured | None = None

    @field_validator("model", mode="before")
    @classmethod
    def _one_or_many(cls, raw: Any) -> Any:
        return [raw] if isinstance(raw, str) else raw

    @model_validator(mode="after")
    def _whole(self) -> Goal:
        if self.slo is not None:
            _refusing(Targets.parse, self.slo)
        if self.measured is not None and (self.model or self.slo is not None):
            said = "model" if self.model else "slo"
            raise refusal(SpecError("is of no account beside measured: nothing is estimated", field=said, value=str(getattr(self, said))))
        if self.measured is None and not self.model:
            raise refusal(SpecError("is required and missing", field="model"))
        if self.measured is None and self.slo is None:
            raise refusal(SpecError("is required and missing: which times must be kept", field="slo"))
        if self.traffic.trace is not None and self.lengths is not None and "input" in self.lengths.model_fields_set:
            raise refusal(SpecError("come from the trace", field="lengths"))
        return self

    @classmethod
    def load(cls, path: Any) -> Goal:
        """The goal in a YAML file; paths of traces and lengths in it are relative to the file."""
        found = super().load(path)
        if found.traffic.trace is None or os.path.isabs(found.traffic.trace):  # noqa: PTH117 - true for odd names
            return found
        trace = str(Path(path).parent / found.traffic.trace)
        return found.model_copy(update={"traffic": found.traffic.model_copy(update={"trace": trace})})

    @property
    def targets(self) -> Targets:
        """The limits."""
        return Targets.parse(self.slo) if self.slo is not None else Targets(())

    def asked(self) -> tuple[Demand, Workload]:
        """Traffic and lengths, a trace read for both; raises SpecError."""
        sizes = self.lengths or Sizes()
        t = self.traffic
        if t.trace is None:
            work = Workload(Lengths.parse(sizes.input, "lengths.input"), Lengths.parse(sizes.output, "lengths.output"), sizes.hit_rate)
            return self._demand(*self._rates()), work
        read = read_trace(t.trace, limit=t.limit).requests
        rates = windowed_rates_per_s(read.arrival_s, t.window_s)
        mean = len(read) / float(read.arrival_s[-1] - read.arrival_s[0])
        profile = tuple(float(r / rates.mean()) for r in rates)
        source = f"{Path(t.trace).name}: {len(read):,} requests, peak over {t.window_s:g} s"
        laws = (Lengths.empirical(read.input_tokens, "of the trace"), Lengths.empirical(read.output_tokens, "of the trace"))
        return self._demand(mean, max(mean, float(rates.max())), profile, source), Workload(*laws, sizes.hit_rate)

    def _rates(self) -> tuple[float, float, tuple[float, ...], str]:
        t = self.traffic
        mean = t.mean_per_s
        each = f"{100 * t.active_share:g} % active, {t.requests_per_user_min:g} requests a minute each"
        source = f"{t.users:,.0f} users, {each}" if t.users else ""
        if t.profile is not None:
            whole = sum(t.profile) / len(t.profile)
            return mean, mean * peak_over_mean(t.profile), tuple(p / whole for p in t.profile), source
        peak = t.peak_per_s if t.peak_per_s is not None else mean * (t.peak_factor or 1.0)
        return mean, peak, (1.0,), source

    def _demand(self, mean: float, peak: float, profile: tuple[float, ...], source: str) -> Demand:
        t = self.traffic
        return Demand(mean, peak, t.growth_per_month, t.months, self.safety.buffer, profile, source or "given")


def _refusing(check: Any, *args: Any, **named: Any) -> None:
    """Run a check whose SpecError pydantic is to carry to the file's line."""
    try:
        check(*args, **named)
    except SpecError as e:
        raise refusal(e) from None
