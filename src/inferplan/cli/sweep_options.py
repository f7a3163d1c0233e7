"""Options of a grid, which sweep and pareto share, and the Space that they and a file make. Does no arithmetic."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Annotated, Any, get_type_hints

import typer

from inferplan.errors import SpecError

if TYPE_CHECKING:
    from inferplan.planner.space import Space

FORMS = "such as 1,2,4, 1..8, 1..256x2 or 128..4096+128"
NAMES = {
    "gpu": "hardware", "dtype": "precision", "kv_dtype": "kv_format", "isl": "input_tokens", "osl": "output_tokens",
    "cached": "cached_tokens", "usd_per_hour": "usd_per_gpu_h",
}  # fmt: skip
"""Options whose field in a grid's file is called otherwise: there the glossary's names stand."""


def _axis(option: str, text: str) -> Any:
    return Annotated[list[str] | None, typer.Option(option, help=text, show_default=False)]


@dataclass(frozen=True, slots=True)
class Grid:
    """The options of a grid as they were typed; those of an axis may stand several times."""

    model: _axis("--model", "Models, with commas.") = None  # type: ignore[valid-type]
    gpu: _axis("--gpu", "Accelerators, with commas.") = None  # type: ignore[valid-type]
    dtype: _axis("--dtype", "Precisions of the weights: bf16,fp8,awq ...; auto: as stored.") = None  # type: ignore[valid-type]
    kv_dtype: _axis("--kv-dtype", "Formats of the KV cache; auto: as the precision says.") = None  # type: ignore[valid-type]
    engine: _axis("--engine", "Engines, each maybe with its release: vllm,sglang,vllm@0.11.0.") = None  # type: ignore[valid-type]
    tp: _axis("--tp", f"Tensor parallel: whole numbers and ranges, {FORMS}.") = None  # type: ignore[valid-type]
    pp: _axis("--pp", "Pipeline stages, in the same form.") = None  # type: ignore[valid-type]
    dp: _axis("--dp", "Attention data parallel groups.") = None  # type: ignore[valid-type]
    ep: _axis("--ep", "Ways in which experts are dealt out.") = None  # type: ignore[valid-type]
    dcp: _axis("--dcp", "Decode context parallel.") = None  # type: ignore[valid-type]
    cp: _axis("--cp", "Context parallel.") = None  # type: ignore[valid-type]
    gpus: _axis("--gpus", "Only splits that take so many devices.") = None  # type: ignore[valid-type]
    batch: _axis("--batch", "Requests at once.") = None  # type: ignore[valid-type]
    isl: _axis("--isl", "Input tokens per request.") = None  # type: ignore[valid-type]
    osl: _axis("--osl", "Output tokens per request.") = None  # type: ignore[valid-type]
    cached: Annotated[int | None, typer.Option("--cached", help="Input tokens that a prefix cache already holds.")] = None
    efficiency: Annotated[str | None, typer.Option("--efficiency", "--calibration", help="Times by: ideal, default, or a file.")] = None
    network: Annotated[str | None, typer.Option("--network", help="Link between nodes, such as infiniband-ndr.")] = None
    utilization: Annotated[float | None, typer.Option("--utilization", help="Share of memory the engine may use.")] = None
    max_model_len: Annotated[int | None, typer.Option("--max-model-len", help="Longest request; unsaid: input plus output.")] = None
    max_num_seqs: Annotated[int | None, typer.Option("--max-num-seqs", help="Sequences that the engine runs at once.")] = None
    max_num_batched_tokens: Annotated[int | None, typer.Option("--max-num-batched-tokens", help="Tokens in a step of prefill.")] = None
    overlap: Annotated[float | None, typer.Option("--overlap", help="Share of collectives hidden behind operators, 0 to 1.")] = None
    usd_per_hour: Annotated[float | None, typer.Option("--usd-per-hour", help="Price of one device; unsaid: the listed one.")] = None
    max_points: Annotated[int | None, typer.Option("--max-points", help="The most points that the grid may have; unsaid: 10^9.")] = None

    def space(self, path: str | None) -> Space:
        """The grid of a file, with what the options say in its place; raises the errors of what cannot be one."""
        from inferplan.planner.space import Space
        from inferplan.specs.document import load_yaml

        mapping = load_yaml(path) if path else {}
        told = {NAMES.get(f.name, f.name): getattr(self, f.name) for f in fields(self) if getattr(self, f.name) is not None}
        if path is None and not {"model", "hardware"} <= set(told):
            raise SpecError("needs --model and --gpu, or a file of a grid", field="sweep")
        file = path if path and not told else None
        return Space.from_mapping({**mapping, **told}, file=file or path).resolved()


def spans(command: Callable[..., int]) -> Callable[..., int]:
    """A command with the options of a grid: `grid`, one of its parameters, is made of them; its own stay as they are."""

    def run(**given: Any) -> int:
        made = Grid(**{f.name: given.pop(f.name) for f in fields(Grid)})
        return command(**given, grid=made)

    hints = get_type_hints(Grid, include_extras=True)
    shared = [inspect.Parameter(f.name, inspect.Parameter.KEYWORD_ONLY, default=f.default, annotation=hints[f.name]) for f in fields(Grid)]
    own = [p for p in inspect.signature(command, eval_str=True).parameters.values() if p.name != "grid"]
    parameters = [*(p.replace(kind=inspect.Parameter.KEYWORD_ONLY) for p in own), *shared]
    run.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    run.__annotations__ = {p.name: p.annotation for p in parameters}
    run.__name__, run.__doc__ = command.__name__, command.__doc__
    return run
