"""The deployment that a row of a case file names: model, part, engine, split and launch. Knows no load and no time."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from inferplan.calibrate.cases import Case
from inferplan.deployment import MAX_BATCH, MAX_TOKENS, Estimate, estimate
from inferplan.errors import Unsupported
from inferplan.memory.case_columns import split_of
from inferplan.readers.opening import Opened, open_model
from inferplan.roofline.efficiency import Efficiency
from inferplan.specs.document import resolve
from inferplan.specs.hardware import Accelerator
from inferplan.specs.parallel import Parallel
from inferplan.specs.precision import Precision


@lru_cache(maxsize=512)
def _opened(text: str, folder: str) -> Opened:
    """The model of a case; a path is taken relative to the case file."""
    beside = resolve(folder) / text
    return open_model(str(beside)) if beside.exists() else open_model(text)


def model_of(case: Case) -> Opened:
    """The model that a row names; raises Unsupported where it names none."""
    return _opened(_named(case, "model"), str(case.folder))


def precision_of(case: Case) -> Precision:
    """The weight format a row names, else that of the checkpoint; the cache format it names, else the 16-bit one."""
    opened = model_of(case)
    named = Precision.named(case.text("weights") or opened.precision or opened.model.dtype)
    return named.with_kv(case.text("kv") or "bf16")


def served_precision(case: Case) -> Precision:
    """The same as an engine holds it: checkpoints stored in fp32 are loaded as 16-bit ones."""
    asked = precision_of(case)
    return Precision.named("bf16").with_kv(asked.kv.name) if asked.name == "fp32" else asked


def _named(case: Case, column: str) -> str:
    found = case.text(column)
    if found is None:
        raise Unsupported(f"the row names no {column}")
    return found


def launch_of(case: Case) -> dict[str, Any]:
    """How a row starts its engine; raises SpecError for numbers outside their range."""
    counts = {"max_model_len": MAX_TOKENS, "max_num_seqs": MAX_BATCH, "max_num_batched_tokens": MAX_TOKENS, "block_size": 1024,
              "recv_interval": 10**6}  # fmt: skip
    whole = {name: case.count(name, 1, most) for name, most in counts.items()}
    return {**whole, "total_gib": case.number("total_gib", 1e-3, 1e6), "utilization": case.number("utilization", 1e-6, 1)}


@dataclass(frozen=True, slots=True)
class Deployment:
    """All that a row says of how a model is served: the same for many rows, which then share what is worked out for it."""

    model: str
    folder: str
    gpu: str
    weights: str | None
    kv: str | None
    engine: str
    version: str | None
    parallel: Parallel
    network: str | None
    total_gib: float | None
    utilization: float | None
    max_model_len: int | None
    max_num_seqs: int | None
    max_num_batched_tokens: int | None
    block_size: int | None
    recv_interval: int | None
    gpu_layers: int | None
    host: str | None

    @classmethod
    def of(cls, case: Case) -> Deployment:
        """The deployment of a row; raises Unsupported where it names no model, part or engine, or asks for what no time is known of."""
        _refuse(case)
        return cls(
            model=_named(case, "model"), folder=str(case.folder), gpu=_named(case, "gpu"), weights=case.text("weights"),
            kv=case.text("kv"), engine=_named(case, "engine"), version=case.text("engine_version"), parallel=split_of(case.row),
            network=case.text("network"), host=case.text("host"), gpu_layers=case.count("gpu_layers", 0, 10**6), **launch_of(case),
        )  # fmt: skip

    @property
    def scheduler_settings(self) -> dict[str, int | None]:
        """What the row says of the scheduler alone."""
        return {"block": self.block_size, "recv_interval": self.recv_interval}

    def estimator(self, case: Case, efficiency: Efficiency) -> Callable[..., Estimate]:
        """An estimate of any load on this deployment, of which `case` is a row."""
        part = Accelerator.find(self.gpu)
        hardware = part if self.total_gib is None else part.with_memory(f"{self.total_gib:g} GiB")
        model, precision = model_of(case).model, served_precision(case)
        layers = self.gpu_layers
        if layers is not None and layers > len(model.order):
            layers = None  # the head lies on the device as well: nothing is left to the host
        host = Accelerator.find(_named(case, "host")) if layers is not None else None

        def estimated(**load: Any) -> Estimate:
            return estimate(
                model, hardware, precision, parallel=self.parallel, engine=self.engine, version=self.version, efficiency=efficiency,
                network=self.network, utilization=self.utilization, max_model_len=self.max_model_len, max_num_seqs=self.max_num_seqs,
                max_num_batched_tokens=self.max_num_batched_tokens, gpu_layers=layers, host=host, **load,
            )  # fmt: skip

        return estimated


def _refuse(case: Case) -> None:
    """Raise Unsupported for what a row may say and no time is predicted of."""
    if case.number("draft_tokens", 0, 1000) or case.text("draft"):
        raise Unsupported("times with drafts are not predicted from a case file; see 'inferplan speculate'")
    if case.text("eager") in ("1", "yes", "true", "True"):
        raise Unsupported("times of eager mode are not predicted: calibrations are of captured graphs")
