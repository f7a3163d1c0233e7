"""Options that several commands share, and what they resolve to. Does no arithmetic."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any

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
EngineName = Annotated[str, typer.Option("--engine", help="Serving engine: vllm, sglang, tensorrt-llm, tgi, llama.cpp, ideal.")]
EngineVersion = Annotated[str | None, typer.Option("--engine-version", help="Release of the engine; unsaid: the newest known.")]
MaxLen = Annotated[int | None, typer.Option("--max-model-len", help="Longest request; unsaid: input plus output.")]
Utilization = Annotated[float | None, typer.Option("--utilization", help="Share of memory the engine may use; unsaid: its default.")]
EfficiencyName = Annotated[str, typer.Option("--efficiency", help="Calibration of times: ideal, default, or a file.")]
Network = Annotated[str | None, typer.Option("--network", help="Link between nodes, such as infiniband-ndr.")]
MemorySize = Annotated[
    str | None, typer.Option("--memory", help="Usable memory of one device, such as 512GB, for parts without a fixed size.")
]


@dataclass(frozen=True, slots=True)
class Asked:
    """The options of an estimate as they were typed."""

    model: str
    gpu: str
    dtype: str = "auto"
    kv_dtype: str = "auto"
    batch: int = 1
    isl: int = 1024
    osl: int = 256
    cached: int = 0
    gpus: int | None = None
    tp: int | None = None
    pp: int = 1
    dp: int = 1
    ep: int = 1
    dcp: int = 1
    engine: str = "vllm"
    engine_version: str | None = None
    max_model_len: int | None = None
    utilization: float | None = None
    efficiency: str = "default"
    network: str | None = None
    memory: str | None = None

    def estimate(self) -> Estimate:
        """The estimate that was asked for; raises the errors of what cannot be resolved."""
        from inferplan.deployment import estimate
        from inferplan.names import hardware
        from inferplan.readers.opening import open_model
        from inferplan.specs.precision import Precision

        self._check()
        opened = open_model(self.model)
        stored = opened.precision or opened.model.dtype
        cast = stored == "fp32" and self.engine != "ideal"  # engines load checkpoints in fp32 as 16-bit ones
        wanted = self.dtype if self.dtype != "auto" else "bf16" if cast else stored
        part = hardware(self.gpu)
        precision = Precision.named(wanted, kv=None if self.kv_dtype == "auto" else self.kv_dtype)
        return estimate(
            opened.model,
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
            utilization=self.utilization,
        )

    def _check(self) -> None:
        for option in ("isl", "osl", "batch", "gpus", "tp", "pp", "dp", "ep", "dcp", "max_model_len"):
            value = getattr(self, option)
            if value is not None and value < 1:
                raise SpecError("must be 1 or more", field=f"--{option.replace('_', '-')}", value=value)
        if self.utilization is not None and not 0 < self.utilization <= 1:
            raise SpecError("must lie above 0 and at most at 1", field="--utilization", value=self.utilization)

    def _parallel(self) -> Any:
        from inferplan.specs.parallel import Parallel

        if self.gpus is None:
            return Parallel(self.tp or 1, self.pp, self.dp, self.ep, self.dcp)
        others = self.pp * self.dp
        tp = self.tp or self.gpus // others
        if tp * others != self.gpus:
            raise SpecError(f"does not equal tp x pp x dp = {tp} x {self.pp} x {self.dp}", field="--gpus", value=self.gpus)
        return Parallel(tp, self.pp, self.dp, self.ep, self.dcp)


def listed(text: str) -> list[str]:
    """The words of an option that takes several, with commas."""
    return [part.strip() for part in text.split(",") if part.strip()] or [text]
