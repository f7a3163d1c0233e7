"""Options that simulate and load-curve share, and what they resolve to: requests, step times, a scheduler. Does no arithmetic."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Annotated, Any

import typer

from inferplan.cli.options import Asked, asking, dashed, in_units
from inferplan.errors import SpecError

if TYPE_CHECKING:
    from inferplan.deployment import Estimate
    from inferplan.serving.lengths import Lengths
    from inferplan.serving.likely import Likely
    from inferplan.serving.requests import Requests
    from inferplan.serving.schedule import Schedule
    from inferplan.serving.served import Served
    from inferplan.serving.simulate import Prefilling
    from inferplan.serving.slo import Slo
    from inferplan.serving.speculative import Acceptance
    from inferplan.serving.steps import Steps

LAW = "512, uniform:0.8-1.0:1024, exponential:128,max=1024, lognormal:512,1500 or file:lengths.csv"
Trace = Annotated[
    str | None,
    typer.Option("--trace", help="Requests from a CSV, JSONL or Parquet file: Azure, BurstGPT, Mooncake, vidur or plain columns."),
]
Limit = Annotated[int | None, typer.Option("--limit", help="Take only the first so many requests of the trace.")]
UNSAID = "poisson:1"
DRAWN, PER_CLIENT = 1000, 10  # requests drawn where no number is asked for: in all, and for each client of a closed loop
PREFIX_BLOCK = 16  # tokens of a block that a shared prefix is hashed in where the engine's is not stated
WIDEST_STEP = 2**20  # tokens of the widest step in a table of step times
ArrivalLaw = Annotated[
    str, typer.Option("--arrivals", help="poisson:5, gamma:5,cv=2, constant:5, diurnal:5,peak=1.9, at-once or closed:64 (clients).")
]
Rate = Annotated[float | None, typer.Option("--rate", help="Requests per second; short for --arrivals poisson:RATE.")]
Clients = Annotated[int | None, typer.Option("--concurrency", help="Clients with one request each; short for --arrivals closed:CLIENTS.")]
Count = Annotated[int | None, typer.Option("--requests", "-n", help=f"Requests to draw; unsaid: {DRAWN}, or {PER_CLIENT} for each client.")]
InputLaw = Annotated[str | None, typer.Option("--input-lengths", help=f"Law of prompts instead of --isl: {LAW}.")]
OutputLaw = Annotated[str | None, typer.Option("--output-lengths", help="Law of outputs instead of --osl, in the same forms.")]
Declared = Annotated[int | None, typer.Option("--max-tokens", help="Declared bound of every output; unsaid: its own length.")]
Shared = Annotated[int, typer.Option("--shared-prefix", help="Tokens at the head of every prompt that all share.")]
HashTokens = Annotated[int | None, typer.Option("--hash-tokens", help="Tokens of a block that the trace's hash_ids stand for.")]
SchedulerName = Annotated[
    str | None, typer.Option("--scheduler", help="vllm-v1, vllm-v0, sglang, tgi, tensorrt-llm, static ...; unsaid: the engine's own.")
]
StepText = Annotated[
    str,
    typer.Option("--steps", help="Step times: table, linear (fitted to it), linear:base,decode,context,prompt,pair in s, or a CSV file."),
]
KvTokens = Annotated[int | None, typer.Option("--kv-tokens", help="Tokens of cache; unsaid: what the engine leaves.")]
BlockSize = Annotated[int | None, typer.Option("--block-size", help="Tokens of a block of cache; unsaid: the engine's.")]
RecvInterval = Annotated[
    int | None, typer.Option("--recv-interval", help="Decode steps between two looks for new requests: SGLang's --scheduler-recv-interval.")
]
Chunked = Annotated[bool | None, typer.Option("--chunked-prefill/--no-chunked-prefill", help="Divide prompts over steps.")]
Caching = Annotated[bool, typer.Option("--prefix-caching/--no-prefix-caching", help="Find blocks of prompts again by hash.")]
Watermark = Annotated[float | None, typer.Option("--watermark", help="Share of the cache that an admission leaves free.")]
Replicas = Annotated[
    int, typer.Option("--replicas", help="Copies of the deployment behind a router; with --prefill-replicas: that decode.")
]
Routing = Annotated[str, typer.Option("--routing", help="round-robin, least-requests or prefix-aware.")]
PrefillReplicas = Annotated[int, typer.Option("--prefill-replicas", help="Copies that only prefill, and hand caches over.")]
TransferBandwidth = Annotated[str | None, typer.Option("--transfer-bandwidth", help="Rate at which caches are handed over: 50GB/s.")]
TransferLatency = Annotated[str, typer.Option("--transfer-latency", help="Time that each hand-over takes beside, such as 5ms.")]
DraftTokens = Annotated[int, typer.Option("--draft-tokens", help="Guesses per step of speculative decoding.")]
Accept = Annotated[float, typer.Option("--accept", help="Probability that a guess is accepted.")]
DraftTime = Annotated[str, typer.Option("--draft-time", help="Time of drafting in each step, such as 2ms.")]
Seed = Annotated[int, typer.Option("--seed", help="Seed of all that is drawn.")]
SloText = Annotated[str | None, typer.Option("--slo", help="Limits, such as ttft=500ms,tpot=50ms,share=0.99.")]


@dataclass(frozen=True, slots=True)
class Traffic:
    """What is asked of a deployment, and how it serves it, as typed."""

    trace: Trace = None
    limit: Limit = None
    arrivals: ArrivalLaw = UNSAID
    rate: Rate = None
    concurrency: Clients = None
    requests: Count = None
    input_lengths: InputLaw = None
    output_lengths: OutputLaw = None
    max_tokens: Declared = None
    shared_prefix: Shared = 0
    hash_tokens: HashTokens = None
    scheduler: SchedulerName = None
    steps: StepText = "table"
    kv_tokens: KvTokens = None
    block_size: BlockSize = None
    recv_interval: RecvInterval = None
    chunked_prefill: Chunked = None
    prefix_caching: Caching = False
    watermark: Watermark = None
    replicas: Replicas = 1
    routing: Routing = "round-robin"
    prefill_replicas: PrefillReplicas = 0
    transfer_bandwidth: TransferBandwidth = None
    transfer_latency: TransferLatency = "0 s"
    draft_tokens: DraftTokens = 0
    accept: Accept = 0.7
    draft_time: DraftTime = "0 s"
    seed: Seed = 0
    slo: SloText = None

    def lengths(self, asked: Asked) -> tuple[Lengths, Lengths]:
        """Laws of prompts and outputs."""
        from inferplan.serving.lengths import Lengths

        prompts = Lengths.parse(self.input_lengths or str(asked.isl), "--input-lengths" if self.input_lengths else "--isl")
        return prompts, Lengths.parse(self.output_lengths or str(asked.osl), "--output-lengths" if self.output_lengths else "--osl")

    def drawn(self, asked: Asked) -> tuple[Requests, str]:
        """The requests, and where they come from in words."""
        if self.seed < 0:
            raise SpecError("must be 0 or more", field="--seed", value=self.seed)
        self._refuse_unused()
        found, source = self._read() if self.trace else self._laws(asked)
        if self.shared_prefix:
            if found.prefixes is not None:
                raise SpecError("the trace has prefixes of its own", field="--shared-prefix", value=self.shared_prefix)
            found = found.sharing(self.shared_prefix, block=self.block_size or PREFIX_BLOCK)
        return found, source

    def _refuse_unused(self) -> None:
        """Raise SpecError for an option that the kind of requests makes no use of."""
        unsaid = Traffic()
        idle: tuple[str, ...] = ("limit", "hash_tokens")
        if self.trace:
            idle = ("arrivals", "rate", "concurrency", "requests", "input_lengths", "output_lengths", "max_tokens")
        for name in idle:
            if getattr(self, name) != getattr(unsaid, name):
                rule = "is of no account with --trace" if self.trace else "needs --trace"
                raise SpecError(rule, field=dashed(name), value=getattr(self, name))

    def _read(self) -> tuple[Requests, str]:
        from inferplan.serving.traces import read_trace

        for field, value in (("--limit", self.limit), ("--hash-tokens", self.hash_tokens)):
            if value is not None and value < 1:
                raise SpecError("must be 1 or more", field=field, value=value)
        read = read_trace(str(self.trace), limit=self.limit, hash_tokens=self.hash_tokens)
        left_out = f"; {read.dropped:,} without prompt or output left out" if read.dropped else ""
        return read.requests, f"{self.trace} ({read.form} columns{left_out})"

    def law(self) -> tuple[str, str]:
        """The law of arrivals in words, and the option that says it."""
        said = {"--arrivals": self.arrivals} if self.arrivals != UNSAID else {}
        said |= {"--rate": f"poisson:{self.rate:.12g}"} if self.rate is not None else {}
        said |= {"--concurrency": f"closed:{self.concurrency}"} if self.concurrency is not None else {}
        if len(said) > 1:
            raise SpecError(f"give one of {', '.join(said)}", field=list(said)[-1], value=said.popitem()[1])
        option, text = said.popitem() if said else ("--arrivals", UNSAID)
        return text, option

    def _laws(self, asked: Asked) -> tuple[Requests, str]:
        from inferplan.serving import arrivals
        from inferplan.serving.requests import Requests

        text, option = self.law()
        law, (prompts, outputs) = arrivals.parse(text, option), self.lengths(asked)
        count = self.requests if self.requests is not None else PER_CLIENT * law.clients if isinstance(law, arrivals.ClosedLoop) else DRAWN
        found = Requests.drawn(law, prompts, outputs, count, seed=self.seed, max_tokens=self.max_tokens)
        return found, f"{text}, prompts {prompts.text}, outputs {outputs.text}, seed {self.seed}"

    def estimate(self, asked: Asked, found: Requests) -> Estimate:
        """The deployment, started for the longest of the requests unless a length is given."""
        for field, value, unsaid in (("--batch", asked.batch, 1), ("--context", asked.context, None), ("--cached", asked.cached, 0)):
            if value != unsaid:
                raise SpecError("is of no account here: batches and contexts follow from the requests", field=field, value=value)
        if asked.max_model_len is not None and asked.max_model_len < found.longest:
            raise SpecError(
                f"is less than the longest request, {found.longest:,} tokens", field="--max-model-len", value=asked.max_model_len
            )
        mean = round(float(found.input_tokens.mean())), round(float(found.output_tokens.mean()))
        sized = replace(asked, isl=max(1, mean[0]), osl=max(1, mean[1]), max_model_len=asked.max_model_len or found.longest)
        return sized.estimate()

    def schedule(self, e: Estimate) -> Schedule:
        """The scheduler with the engine's defaults and what was said otherwise."""
        from inferplan.serving.schedule import Schedule

        return Schedule.of(e.capacity, self.scheduler).but(
            kv_tokens=self.kv_tokens, block=self.block_size, recv_interval=self.recv_interval, chunked=self.chunked_prefill,
            watermark=self.watermark, prefix_caching=self.prefix_caching or None, draft_tokens=self.draft_tokens or None,
        )  # fmt: skip

    def step_times(self, e: Estimate, schedule: Schedule, found: Requests) -> Steps:
        """Step times as `--steps` says."""
        from inferplan.serving import steps
        from inferplan.serving.schedule import graph_sizes

        name, _, rest = self.steps.partition(":")
        if name == "linear" and rest:
            return _linear(rest, self.steps)
        if name not in ("table", "linear"):
            return steps.file_steps(self.steps)
        if rest:
            raise SpecError("is no model of step times; write table, linear, linear:... or a CSV file", field="--steps", value=self.steps)
        widest = schedule.max_num_batched_tokens if not schedule.batching else schedule.slots * int(found.input_tokens.max())
        table = steps.table_steps(
            e.model, e.hardware, e.precision, e.setting, most_decodes=schedule.slots, most_context=found.longest,
            most_tokens=min(widest, WIDEST_STEP), draft=self.draft_tokens, graphs=graph_sizes(e.capacity),
            beside_s=in_units(self.draft_time, "s", "--draft-time") if self.draft_tokens else 0.0,
        )  # fmt: skip
        return table if name == "table" else steps.linear_steps(table)

    def acceptance(self) -> Acceptance | None:
        """The law of accepted guesses, where there are any."""
        from inferplan.serving.speculative import Acceptance

        return Acceptance(self.draft_tokens, self.accept) if self.draft_tokens else None

    def prefilling(self, e: Estimate, schedule: Schedule, found: Requests) -> Prefilling | None:
        """The prefilling side of a disaggregated deployment, alike in parts and split."""
        from inferplan.serving.simulate import Prefilling

        if self.prefill_replicas == 0:
            if self.transfer_bandwidth:
                raise SpecError("needs --prefill-replicas", field="--transfer-bandwidth", value=self.transfer_bandwidth)
            return None
        rate = in_units(self.transfer_bandwidth, "B/s", "--transfer-bandwidth") if self.transfer_bandwidth else float("inf")
        if rate == 0:
            raise SpecError("must be above 0", field="--transfer-bandwidth", value=self.transfer_bandwidth)
        plain = replace(self, draft_tokens=0)
        own = schedule.but(draft_tokens=0)
        latency = in_units(self.transfer_latency, "s", "--transfer-latency")
        return Prefilling(own, plain.step_times(e, own, found), self.prefill_replicas, latency, e.kv_bytes_per_token / rate)

    def limits(self) -> Slo | None:
        """The limits that were stated."""
        from inferplan.serving.slo import Slo

        return Slo.parse(self.slo) if self.slo else None


@dataclass(frozen=True, slots=True)
class Prepared:
    """All that a run needs, resolved."""

    estimate: Estimate
    requests: Requests
    source: str
    schedule: Schedule
    steps: Steps
    traffic: Traffic
    prefilling: Prefilling | None
    slo: Slo | None

    @property
    def calibrated(self) -> bool:
        """Whether step times are those of the calibration, to which its front ends belong, and not of one's own."""
        return self.traffic.steps in ("table", "linear")

    @property
    def likely(self) -> Likely | None:
        """The bands of its times; None for step times of one's own, and for separate pools and drafts, of which too few runs are known."""
        from inferplan.serving.likely import Likely

        t = self.traffic
        if not self.calibrated or self.prefilling is not None or t.draft_tokens:
            return None
        return Likely.of(self.estimate, self.requests, t.replicas)

    def run(self, requests: Requests, *, series: bool = False, progress: Any = None) -> Served:
        """The simulation of some requests, as clients measure it: with what host and front end take, where step times are calibrated."""
        from inferplan.serving.front_end import front_ends_of, with_front_end
        from inferplan.serving.simulate import simulate

        t = self.traffic
        found = simulate(
            requests, self.steps, self.schedule, seed=t.seed, replicas=t.replicas, routing=t.routing, prefilling=self.prefilling,
            acceptance=t.acceptance(), series=series, progress=progress,
        )  # fmt: skip
        e = self.estimate
        return with_front_end(found, e, front_ends_of(e, t.replicas, self.prefilling)) if self.calibrated else found


def prepared(asked: Asked, traffic: Traffic) -> Prepared:
    """Everything that was asked for, resolved; raises the errors of what cannot be."""
    slo = traffic.limits()
    found, source = traffic.drawn(asked)
    e = traffic.estimate(asked, found)
    schedule = traffic.schedule(e)
    return Prepared(
        e, found, source, schedule, traffic.step_times(e, schedule, found), traffic, traffic.prefilling(e, schedule, found), slo
    )


def _linear(rest: str, text: str) -> Steps:
    from inferplan.serving.steps import LinearSteps

    try:
        numbers = [float(part) for part in rest.split(",")]
    except ValueError:
        numbers = []
    if not 1 <= len(numbers) <= 5:
        raise SpecError(
            "takes 1 to 5 numbers of seconds: base, per decode, per context token, per prompt token, per pair", field="--steps", value=text
        )
    return LinearSteps(*numbers)


asks = asking(asked=Asked, traffic=Traffic)
