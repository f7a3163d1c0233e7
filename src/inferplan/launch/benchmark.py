"""The benchmark that would check a plan, with the plan's own load, and the `inferplan validate` that reads its result. Knows no screen."""

from __future__ import annotations

import shlex
from dataclasses import dataclass

import numpy as np

from inferplan.errors import SpecError, Unsupported
from inferplan.launch.command import NO_RELEASES, Command, shell
from inferplan.launch.engines import BATCH_TOKENS, gpu_layers, llama_cache, llama_split
from inferplan.launch.plan import Plan
from inferplan.launch.table import Options, Wish

LEAST_REQUESTS, WAVES, LEAST_S = 32, 8, 120.0
MOST_REQUESTS = 100_000
OWN_CLIENT = ("vllm", "sglang")  # engines that bring a benchmark of a server
AIPERF = ("aiperf", "AIPerf")


@dataclass(frozen=True, slots=True)
class Benchmark:
    """A benchmark's command, the file that its result goes to, and the command that compares it with the plan's prediction.

    redirected
        whether the result is what the command prints.
    """

    argv: tuple[str, ...]
    result: str
    redirected: bool
    validate: tuple[str, ...]
    remarks: tuple[str, ...]

    @property
    def text(self) -> str:
        """The benchmark for a shell."""
        return shell(self.argv) + (f" \\\n  > {shlex.quote(self.result)}" if self.redirected else "")

    @property
    def validate_text(self) -> str:
        """The comparison for a shell."""
        return shell(self.validate)


@dataclass(frozen=True, slots=True)
class Offered:
    """The load of a benchmark: clients at once, or requests per second, and how many requests in all."""

    concurrency: int | None
    rate_per_s: float | None
    requests: int

    def wishes(self) -> list[Wish]:
        """As a benchmark says it."""
        load = Wish("rate", f"{self.rate_per_s:g}") if self.rate_per_s is not None else Wish("concurrency", self.concurrency)
        return [Wish("requests", self.requests), load]


def launch_benchmark(
    command: Command, *, asked: str = "", rate_per_s: float | None = None, concurrency: int | None = None, requests: int | None = None
) -> Benchmark:
    """The benchmark of a started deployment: as many clients as the plan has requests at once, or arrivals at a rate.

    Prompts and outputs have the plan's lengths; the end of a sequence is ignored where the server can be told to. `requests` unsaid: eight
    for each client and 32 at least, or two minutes of arrivals.

    Raises SpecError for a load that is none or for two at once.

    >>> from inferplan.deployment import estimate
    >>> from inferplan.launch.command import launch_command
    >>> from inferplan.names import hardware, model, precision
    >>> found = launch_command(estimate(model("llama-3.1-8b"), hardware("h100"), precision("bf16"), batch=16, version="0.11.0"))
    >>> launch_benchmark(found).argv[:3], launch_benchmark(found).result
    (('vllm', 'bench', 'serve'), 'result.json')
    """
    plan = command.plan
    load = _offered(plan, rate_per_s, concurrency, requests)
    if plan.options.name == "llama.cpp" and rate_per_s is None and load.concurrency == 1:
        argv, result, remarks = _llama_bench(plan)
    elif plan.options.name in OWN_CLIENT:
        argv, result, remarks = _own(plan, load)
    else:
        argv, result, remarks = _aiperf(plan, load)
    redirected = argv[0] == "llama-bench"
    if plan.e.load.images:
        remarks.append("the benchmark sends text alone; the plan's images are not in it")
    return Benchmark(tuple(argv), result, redirected, tuple(_validate(plan, result, asked)), tuple(remarks))


def _offered(plan: Plan, rate_per_s: float | None, concurrency: int | None, requests: int | None) -> Offered:
    if rate_per_s is not None and concurrency is not None:
        raise SpecError("stands beside a concurrency: give one of the two", field="rate", value=rate_per_s)
    if rate_per_s is not None and not 0 < rate_per_s <= 1e6:
        raise SpecError("must be above 0 and at most 1,000,000 requests per second", field="rate", value=rate_per_s)
    for name, value, most in (("concurrency", concurrency, 10**6), ("requests", requests, MOST_REQUESTS * 10)):
        if value is not None and not 1 <= value <= most:
            raise SpecError(f"must lie between 1 and {most:,}", field=name, value=value)
    clients = None if rate_per_s is not None else concurrency or plan.e.load.batch
    waves = WAVES * clients if clients else np.ceil((rate_per_s or 0.0) * LEAST_S)
    return Offered(clients, rate_per_s, requests or int(min(MOST_REQUESTS, max(LEAST_REQUESTS, waves))))


def _own(plan: Plan, load: Offered) -> tuple[list[str], str, list[str]]:
    """The engine's own client, of its release, or of the newest one known where the release's cannot say the load."""
    say = _vllm_words if plan.options.name == "vllm" else _sglang_words
    result = "result.json" if plan.options.name == "vllm" else "result.jsonl"
    wishes = say(plan, load, result)
    try:
        return [*plan.options.program("bench"), *plan.options.words("bench", wishes)], result, []
    except Unsupported as e:
        newest = Options.of(plan.options.name, plan.options.title)
        remark = f"benchmark: {e}; its options are those of the client of a later release, which measures this server as well"
        return [*newest.program("bench"), *newest.words("bench", wishes)], result, [remark]


def _vllm_words(plan: Plan, load: Offered, result: str) -> list[Wish]:
    e = plan.e
    cached = [Wish("cached", e.load.cached)] if e.load.cached else []
    lengths = [*cached, Wish("input_tokens", plan.new_tokens), Wish("output_tokens", e.load.output_tokens), Wish("ignore_eos")]
    kept = [Wish("metrics"), Wish("percentiles"), Wish("save"), Wish("result", result)]
    return [Wish("model", plan.weights.name), Wish("host", "127.0.0.1"), Wish("port", plan.port), Wish("dataset", of="random"), *lengths,
            *load.wishes(), *kept]  # fmt: skip


def _sglang_words(plan: Plan, load: Offered, result: str) -> list[Wish]:
    e = plan.e
    first = [Wish("backend"), Wish("model", plan.weights.name), Wish("host", "127.0.0.1"), Wish("port", plan.port)]
    if e.load.cached:
        said = [Wish("dataset", of="shared"), Wish("groups", 1), Wish("group_requests", load.requests), Wish("cached", e.load.cached)]
        said += [Wish("shared_input_tokens", plan.new_tokens), Wish("shared_output_tokens", e.load.output_tokens)]
    else:
        said = [Wish("dataset", of="random"), Wish("input_tokens", e.load.input_tokens), Wish("output_tokens", e.load.output_tokens)]
        said += [Wish("range_ratio", 1)]
    return [*first, *said, *load.wishes(), Wish("result", result)]


def _aiperf(plan: Plan, load: Offered) -> tuple[list[str], str, list[str]]:
    """AIPerf, for servers of the OpenAI interface without a client of their own."""
    options, e, remarks = Options.of(*AIPERF), plan.e, []
    words = [Wish("model", plan.weights.name)]
    if plan.weights.is_file or plan.options.name == "llama.cpp":
        if not plan.weights.base:
            raise Unsupported(f"{plan.weights.name} is no Hub id: the benchmark needs one for its tokenizer, and the catalog has none")
        words.append(Wish("tokenizer", plan.weights.base))
    words += [Wish("url", f"http://127.0.0.1:{plan.port}"), Wish("endpoint"), Wish("streaming")]
    words += [Wish("groups", 1), Wish("cached", e.load.cached)] if e.load.cached else []
    words += [Wish("input_tokens", plan.new_tokens), Wish("output_tokens", e.load.output_tokens)]
    if plan.options.name == "tgi":
        remarks.append("the server cannot be told to ignore the end of a sequence: outputs may be shorter than planned")
    else:
        words.append(Wish("ignore_eos"))
    argv = [*options.program("bench"), *options.words("bench", [*words, *load.wishes(), Wish("result", "result")])]
    return argv, "result/profile_export_aiperf.json", remarks


def _llama_bench(plan: Plan) -> tuple[list[str], str, list[str]]:
    """llama-bench: the prompt alone, the output alone, and both in one, without a server."""
    e, o = plan.e, plan.options
    of = "file" if plan.weights.is_file else "hub"
    name = f"{plan.weights.name}:{plan.weights.tag}" if plan.weights.tag else plan.weights.name
    wishes = [Wish("model", name, of, "a repository in its benchmark (name a .gguf file)"), Wish("input_tokens", plan.new_tokens)]
    wishes += [Wish("output_tokens", e.load.output_tokens), Wish("both", f"{plan.new_tokens},{e.load.output_tokens}")]
    wishes += [Wish("depth", e.load.cached)] if e.load.cached else []
    wishes += [Wish("gpu_layers", gpu_layers(plan))]
    wishes += [Wish("batch_tokens", plan.step_tokens)] if plan.step_tokens > BATCH_TOKENS else []
    wishes += [Wish("max_num_batched_tokens", plan.step_tokens), Wish("flash_attention")]
    experts = e.capacity.offload.experts
    wishes += [Wish("cpu_experts", experts)] if experts else []
    for wish in (*llama_cache(plan), *llama_split(plan)):
        wishes.append(Wish(wish.sets, o.needed("serve", wish.sets, wish.of).value))
    return [*o.program("bench"), *o.words("bench", [*wishes, Wish("output")])], "result.json", []


def _validate(plan: Plan, result: str, asked: str) -> list[str]:
    """`inferplan validate` with what the result's file does not say."""
    e, launch = plan.e, plan.e.capacity.launch
    argv = ["inferplan", "validate", result, "--model", asked or e.model.name, "--gpu", e.hardware.name, "--engine", e.engine.name]
    argv += ["--engine-version", e.engine.version] if e.engine.newest != NO_RELEASES else []
    argv += ["--dtype", e.precision.name, "--kv-dtype", e.precision.kv.name]
    for name in ("tp", "pp", "dp", "ep"):
        argv += [f"--{name}", str(plan.ways(name))] if plan.ways(name) > 1 else []
    told = {name: plan.ways(name) for name in ("dcp", "cp") if plan.ways(name) > 1} | {"max_model_len": plan.length}
    told |= {"max_num_seqs": plan.requests} | ({"cached_tokens": e.load.cached} if e.load.cached else {})
    told |= {"max_num_batched_tokens": plan.step_tokens} if e.max_num_batched_tokens is not None else {}
    sets = [f"{name}={value}" for name, value in told.items()]
    sets += [f"utilization={float(np.max(launch.utilization)):g}"] if e.utilization is not None else []
    return [*argv, *(word for text in sets for word in ("--set", text))]
