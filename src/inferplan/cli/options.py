"""Options that several commands share, and what they resolve to. Does no arithmetic."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import MISSING, dataclass, fields
from typing import TYPE_CHECKING, Annotated, Any, get_type_hints

import typer

from inferplan.errors import SpecError

if TYPE_CHECKING:
    from inferplan.deployment import Estimate

Model = Annotated[str, typer.Option("--model", "-m", help="Catalog name, Hub id, or a path to YAML, config.json, GGUF or a folder.")]
Gpu = Annotated[str, typer.Option("--gpu", "-g", help="Name, alias or path of an accelerator.")]
Dtype = Annotated[str, typer.Option("--dtype", "-d", help="Precision of the weights: bf16, fp8, awq, q4_k_m ...; auto: as stored.")]
KvDtype = Annotated[str, typer.Option("--kv-dtype", help="Format of the KV cache; auto: as the precision says.")]
Batch = Annotated[int, typer.Option("--batch", "-b", help="Requests at once.")]
Isl = Annotated[int, typer.Option("--isl", help="Input tokens per request.")]
Osl = Annotated[int, typer.Option("--osl", help="Output tokens per request.")]
Cached = Annotated[int, typer.Option("--cached", help="Input tokens that a prefix cache already holds.")]
Gpus = Annotated[int | None, typer.Option("--gpus", help="Devices; unsaid splits are tensor parallel.")]
Tp = Annotated[int | None, typer.Option("--tp", help="Tensor parallel.")]
Pp = Annotated[int, typer.Option("--pp", help="Pipeline stages.")]
Dp = Annotated[int, typer.Option("--dp", help="Attention data parallel groups.")]
Ep = Annotated[int, typer.Option("--ep", help="Ways in which experts are dealt out.")]
Dcp = Annotated[int, typer.Option("--dcp", help="Decode context parallel: ways in which cached tokens are dealt out.")]
Cp = Annotated[int, typer.Option("--cp", help="Context parallel: groups that share the tokens of a prompt and its cache.")]
Context = Annotated[int | None, typer.Option("--context", help="Tokens of the decode steps; unsaid: all that the output runs through.")]
EngineName = Annotated[str, typer.Option("--engine", help="Serving engine: vllm, sglang, tensorrt-llm, tgi, llama.cpp, ideal.")]
EngineVersion = Annotated[str | None, typer.Option("--engine-version", help="Release of the engine; unsaid: the newest known.")]
MaxLen = Annotated[int | None, typer.Option("--max-model-len", help="Longest request; unsaid: input plus output.")]
MaxSeqs = Annotated[int | None, typer.Option("--max-num-seqs", help="Sequences that the engine runs at once; unsaid: its default.")]
MaxTokens = Annotated[
    int | None, typer.Option("--max-num-batched-tokens", help="Tokens in a step of prefill; unsaid: the engine's default.")
]
Utilization = Annotated[float | None, typer.Option("--utilization", help="Share of memory the engine may use; unsaid: its default.")]
EfficiencyName = Annotated[str, typer.Option("--efficiency", "--calibration", help="Times by: ideal, default, or a file.")]
Network = Annotated[str | None, typer.Option("--network", help="Link between nodes, such as infiniband-ndr.")]
MemorySize = Annotated[
    str | None, typer.Option("--memory", help="Usable memory of one device, such as 512GB, for parts without a fixed size.")
]
Host = Annotated[str | None, typer.Option("--host", help="The host's processor, for what is computed or kept there: ryzen-9950x ...")]
GpuLayers = Annotated[int | None, typer.Option("--gpu-layers", help="Layers on the devices, as -ngl of llama.cpp; the host has the rest.")]
CpuExperts = Annotated[int, typer.Option("--cpu-experts", help="First layers whose experts the host keeps, as --n-cpu-moe of llama.cpp.")]
CpuOffload = Annotated[str | None, typer.Option("--cpu-offload", help="Weights per device kept in host memory, such as 10GiB.")]
Overlap = Annotated[float, typer.Option("--overlap", help="Share of collectives hidden behind operators, 0 to 1.")]
ExpertSkew = Annotated[float, typer.Option("--expert-skew", help="Power law of the experts' popularity; 0: all alike.")]
ExpertImbalance = Annotated[float, typer.Option("--expert-imbalance", help="Work of the busiest expert rank over the mean.")]
Images = Annotated[int, typer.Option("--images", help="Images per request; their tokens count among --isl.")]
ImagePatches = Annotated[
    int | None, typer.Option("--image-patches", help="Patches of one image in the vision tower; unsaid: the tower's own size.")
]


COUNTS = (
    "isl", "osl", "batch", "gpus", "tp", "pp", "dp", "ep", "dcp", "cp", "context", "max_model_len", "max_num_seqs",
    "max_num_batched_tokens", "image_patches",
)  # fmt: skip
ARGUMENTS = {"input_tokens": "isl", "output_tokens": "osl", "patches": "image_patches", "cpu_offload_bytes": "cpu_offload"}


@dataclass(frozen=True, slots=True)
class Asked:
    """The options of an estimate as they were typed."""

    model: Model
    gpu: Gpu
    dtype: Dtype = "auto"
    kv_dtype: KvDtype = "auto"
    batch: Batch = 1
    isl: Isl = 1024
    osl: Osl = 256
    cached: Cached = 0
    gpus: Gpus = None
    tp: Tp = None
    pp: Pp = 1
    dp: Dp = 1
    ep: Ep = 1
    dcp: Dcp = 1
    cp: Cp = 1
    context: Context = None
    engine: EngineName = "vllm"
    engine_version: EngineVersion = None
    max_model_len: MaxLen = None
    max_num_seqs: MaxSeqs = None
    max_num_batched_tokens: MaxTokens = None
    utilization: Utilization = None
    efficiency: EfficiencyName = "default"
    network: Network = None
    memory: MemorySize = None
    host: Host = None
    gpu_layers: GpuLayers = None
    cpu_experts: CpuExperts = 0
    cpu_offload: CpuOffload = None
    overlap: Overlap = 0.0
    expert_skew: ExpertSkew = 0.0
    expert_imbalance: ExpertImbalance = 1.0
    images: Images = 0
    image_patches: ImagePatches = None

    def estimate(self) -> Estimate:
        """The estimate that was asked for; raises the errors of what cannot be resolved."""
        with named_as_options(*Asked.__dataclass_fields__):
            return self._estimate()

    def _estimate(self) -> Estimate:
        from inferplan.deployment import estimate
        from inferplan.names import hardware
        from inferplan.readers.opening import open_model
        from inferplan.specs.precision import Precision

        self._check()
        if self.network is not None:
            from inferplan.specs.link import links

            links().find(self.network)  # also where one node holds all, and the network says nothing
        opened = open_model(self.model)
        wanted = self.dtype if self.dtype != "auto" else opened.stored if self.engine == "ideal" else opened.served
        part = hardware(self.gpu)
        precision = Precision.named(wanted, kv=None if self.kv_dtype == "auto" else self.kv_dtype)
        return estimate(
            opened.told,
            part.with_memory(self.memory) if self.memory else part,
            precision,
            input_tokens=self.isl,
            output_tokens=self.osl,
            batch=self.batch,
            cached=self.cached,
            parallel=self._parallel(),
            engine=self.engine,
            version=self.engine_version,
            efficiency=self.efficiency,
            network=self.network,
            max_model_len=self.max_model_len,
            max_num_seqs=self.max_num_seqs,
            max_num_batched_tokens=self.max_num_batched_tokens,
            utilization=self.utilization,
            context=self.context,
            host=hardware(self.host) if self.host else None,
            gpu_layers=self.gpu_layers,
            cpu_experts=self.cpu_experts,
            cpu_offload_bytes=in_units(self.cpu_offload, "B", "--cpu-offload") if self.cpu_offload is not None else 0.0,
            overlap=self.overlap,
            expert_skew=self.expert_skew,
            expert_imbalance=self.expert_imbalance,
            images=self.images,
            image_patches=self.image_patches,
        )

    def _check(self) -> None:
        for least, options in ((1, COUNTS), (0, ("gpu_layers", "cpu_experts", "images"))):
            for option in options:
                value = getattr(self, option)
                if value is not None and value < least:
                    raise SpecError(f"must be {least} or more", field=dashed(option), value=value)
        for option, low, high in (("overlap", 0, 1), ("expert_skew", 0, 4), ("expert_imbalance", 1, 1000)):
            if not low <= getattr(self, option) <= high:
                raise SpecError(f"must lie between {low} and {high}", field=dashed(option), value=getattr(self, option))
        if self.utilization is not None and not 0 < self.utilization <= 1:
            raise SpecError("must lie above 0 and at most at 1", field="--utilization", value=self.utilization)

    def _parallel(self) -> Any:
        from inferplan.specs.parallel import Parallel

        if self.gpus is None:
            return Parallel(self.tp or 1, self.pp, self.dp, self.ep, self.dcp, self.cp)
        others = self.pp * self.dp * self.cp
        tp = self.tp or max(1, self.gpus // others)
        if tp * others != self.gpus:
            ways = f"tp x pp x dp x cp = {tp} x {self.pp} x {self.dp} x {self.cp}"
            raise SpecError(f"does not equal {ways}", field="--gpus", value=self.gpus)
        return Parallel(tp, self.pp, self.dp, self.ep, self.dcp, self.cp)


@contextmanager
def named_as_options(*options: str) -> Iterator[None]:
    """Errors about an argument of the library leave under the name of the option that gives it, where that is among `options`."""
    try:
        yield
    except SpecError as e:
        option = ARGUMENTS.get(e.field or "", e.field)
        if e.file is not None or option not in options:
            raise
        raise SpecError(e.rule, field=dashed(option), value=e.value) from None


def dashed(name: str) -> str:
    """A parameter's name as the option that gives it is typed."""
    return f"--{name.replace('_', '-')}"


def in_units(text: str, unit: str, option: str) -> float:
    """A quantity that an option gives, in base units; raises SpecError under the option's name."""
    from inferplan import units

    try:
        return units.parse(text, unit)
    except SpecError as e:
        raise SpecError(e.rule, field=option, value=e.value) from None


def listed(text: str) -> list[str]:
    """The words of an option that takes several, with commas."""
    return [part.strip() for part in text.split(",") if part.strip()] or [text]


def asking(**kinds: type[Any]) -> Callable[[Callable[..., int]], Callable[..., int]]:
    """A decorator for commands: each parameter named here is made of the fields of a dataclass, as options; others stay as they are."""

    def asks(command: Callable[..., int]) -> Callable[..., int]:
        def run(**given: Any) -> int:
            made = {name: kind(**{f.name: given.pop(f.name) for f in fields(kind)}) for name, kind in kinds.items()}
            return command(**given, **made)

        own = inspect.signature(command, eval_str=True).parameters.values()
        kept = [p.replace(kind=inspect.Parameter.KEYWORD_ONLY) for p in own if p.name not in kinds]
        parameters = [*(p for kind in kinds.values() for p in _options_of(kind)), *kept]
        run.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
        run.__annotations__ = {p.name: p.annotation for p in parameters}
        run.__name__, run.__doc__ = command.__name__, command.__doc__
        return run

    return asks


def _options_of(kind: type[Any]) -> list[inspect.Parameter]:
    """The fields of a dataclass as keyword parameters."""
    hints = get_type_hints(kind, include_extras=True)
    return [
        inspect.Parameter(
            f.name, inspect.Parameter.KEYWORD_ONLY, default=inspect.Parameter.empty if f.default is MISSING else f.default,
            annotation=hints[f.name],
        )
        for f in fields(kind)
    ]  # fmt: skip


asks = asking(asked=Asked)
