"""Whole answers in one call each, for notebooks: what the commands of the shell do, with names or specs. Knows no equation."""

from __future__ import annotations

import io
import os
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import numpy as np

from inferplan import deployment
from inferplan.calibrate.validate import Outcome
from inferplan.errors import SpecError
from inferplan.launch.command import Command
from inferplan.quantization.answer import Quantized, quantized
from inferplan.quantization.support import usual
from inferplan.readers.opening import open_model
from inferplan.report import canvas
from inferplan.report.batching import Compared, compared
from inferplan.report.notebook import Estimate, estimate
from inferplan.serving import arrivals as laws
from inferplan.serving.batch_times import Workload
from inferplan.serving.front_end import front_ends_of, with_front_end
from inferplan.serving.lengths import Lengths
from inferplan.serving.protocol import case_steps
from inferplan.serving.requests import Requests
from inferplan.serving.schedule import Schedule
from inferplan.serving.served import Served
from inferplan.serving.simulate import simulate as simulated
from inferplan.serving.slo import Slo
from inferplan.serving.steps import Steps
from inferplan.serving.summary import LoadCurve, curve_of
from inferplan.shown import Shown
from inferplan.specs.engine import Engine
from inferplan.specs.hardware import Accelerator
from inferplan.specs.model import Model
from inferplan.speculation.acceptance import of_rates, of_typical
from inferplan.speculation.answer import Speculation
from inferplan.speculation.answer import speculate as speculated
from inferplan.speculation.drafts import draft_named

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.axes import Axes

PNG_DPI, COLOURS = 200, 64  # of a picture in a notebook: fewer than files have, so that notebooks stay small
SCREEN_DPI = 110  # at which it is shown


@dataclass(frozen=True, slots=True)
class Picture:
    """A picture that a notebook shows and that can be saved; `ax` is matplotlib's, for changes of your own."""

    ax: Axes

    def save(self, path: str | os.PathLike[str]) -> Path:
        """Write it as the file's ending says, PNG, SVG or PDF, whole or not at all; raises SpecError for another ending."""
        return canvas.write_picture(self.ax, path)

    def _repr_png_(self) -> tuple[bytes, dict[str, int]]:
        """The picture, where a notebook shows it."""
        from PIL import Image

        figure: Any = self.ax.figure
        drawn, data = io.BytesIO(canvas.png_bytes(self.ax, PNG_DPI)), io.BytesIO()
        Image.open(drawn).convert("RGB").quantize(COLOURS).save(data, format="png", optimize=True)
        return data.getvalue(), {"width": round(figure.get_size_inches()[0] * SCREEN_DPI)}

    def __repr__(self) -> str:
        """Its title in a line."""
        figure: Any = self.ax.figure
        title = self.ax.get_title(loc="left") or figure.get_suptitle()
        return f"Picture({' | '.join(title.splitlines())!r})"


@dataclass(frozen=True, slots=True)
class Comparison(Shown):
    """Several estimates side by side."""

    estimates: tuple[deployment.Estimate, ...]


@dataclass(frozen=True, slots=True)
class Quantization(Shown):
    """Formats of weights and cache compared: an answer per part."""

    answers: tuple[Quantized, ...]


@dataclass(frozen=True, slots=True)
class Validation(Shown):
    """Predictions beside known values: an outcome per row, grouped `by` columns."""

    outcomes: list[Outcome]
    by: list[str]


def compare(*estimates: deployment.Estimate | Iterable[deployment.Estimate]) -> Comparison:
    """Estimates side by side: one after the other, or in lists. Raises SpecError for none.

    >>> import inferplan as ip
    >>> len(ip.compare(ip.estimate("7b", gpu, "fp8") for gpu in ("h100", "l40s")).estimates)
    2
    """
    found = tuple(e for one in estimates for e in ((one,) if isinstance(one, deployment.Estimate) else one))
    if not found:
        raise SpecError("needs one estimate at least", field="estimates")
    return Comparison(found)


def quantize(
    model: Model | str, hardware: Accelerator | str | Sequence[Accelerator | str], formats: Sequence[str] | None = None,
    kv_formats: Sequence[str] | None = None, *, engine: str = "vllm", **options: Any,
) -> Quantization:  # fmt: skip
    """What formats of weights and cache save and cost on one part or several: bytes, speed, room, and where one stops paying.

    formats, kv_formats
        names, such as ["bf16", "fp8", "awq"]; unsaid, those usual under the engine.
    options
        those of `inferplan.estimate`.

    >>> import inferplan as ip
    >>> [round(o.saving, 2) for o in ip.quantize("7b", "h100", ["bf16", "fp8"], ["bf16"]).answers[0].options]
    [0.0, 0.48]
    """
    shape = open_model(model).told if isinstance(model, str) else model
    some = [hardware] if isinstance(hardware, (str, Accelerator)) else list(hardware)
    if not some:
        raise SpecError("needs one part at least", field="hardware")
    weights, caches = (text.split(",") for text in usual(Engine.find(engine)))

    def answer(part: Accelerator | str) -> Quantized:
        def run(weights: str, cache: str) -> Estimate:
            return estimate(shape, part, weights, kv_format=cache, engine=engine, **options)

        return quantized(run, weights if formats is None else formats, caches if kv_formats is None else kv_formats)

    return Quantization(tuple(answer(part) for part in some))


def speculate(
    plain: deployment.Estimate, draft: str, accept: float | Sequence[float] | None = None, *, draft_tokens: int | None = None,
    draft_tp: int | None = None, draft_dtype: str | None = None,
) -> Speculation:  # fmt: skip
    """What a draft gains on the deployment of an estimate, and from which batch it is a loss.

    draft
        a smaller model by name or path, or eagle, eagle3, medusa, mtp, ngram.
    accept
        the share of drafts that is kept, or one for each position; unsaid, what was published for the kind, where something was.
    draft_tokens
        drafts in a row per round; unsaid, the best number.

    >>> import inferplan as ip
    >>> found = ip.speculate(ip.estimate("llama-3.1-8b", "h100", "bf16"), "eagle3", 0.7)
    >>> found.speed_up > 1, found.chosen
    (True, True)
    """
    named = draft_named(plain.model, plain.precision, draft, draft_dtype)
    if accept is not None:
        kept = of_rates([accept] if isinstance(accept, (int, float)) else accept)
    else:
        kept, published = of_typical(named.kind)
        draft_tokens = draft_tokens or (kept.most if published else None)
    return speculated(plain, named, kept, draft_tokens=draft_tokens, draft_tp=draft_tp)


def batching(
    e: deployment.Estimate, *, rate_per_s: Any = None, clients: Any = None, input_lengths: str | None = None,
    output_lengths: str | None = None, hit_rate: float = 0.0, max_num_seqs: int | None = None, static_batch: int | None = None,
) -> Compared:  # fmt: skip
    """Static beside continuous batching under arrival rates or numbers of clients, in closed form; unsaid, 1, 2, 4 ... clients.

    input_lengths, output_lengths
        laws such as "512", "uniform:0.5-1:1024" or "exponential:128"; unsaid, the lengths of the estimate. The engine is sized for the
        estimate's own lengths, which must hold the longest of the laws.

    >>> import inferplan as ip
    >>> found = ip.batching(ip.estimate("7b", "h100", "fp8"), rate_per_s=[1, 4])
    >>> found.continuous.stable.tolist()
    [True, True]
    """
    prompts = Lengths.parse(input_lengths, "input_lengths") if input_lengths else Lengths.fixed(e.load.input_tokens)
    outputs = Lengths.parse(output_lengths, "output_lengths") if output_lengths else Lengths.fixed(e.load.output_tokens)
    if rate_per_s is not None and clients is not None:
        raise SpecError("give rate_per_s or clients, not both", field="clients")
    loads: dict[str, Any] = {}
    if rate_per_s is not None:
        loads["rate_per_s"] = _numbers(rate_per_s, "rate_per_s")
    if clients is not None:
        loads["clients"] = _numbers(clients, "clients")
        if not np.all(np.isfinite(loads["clients"]) & (loads["clients"] % 1 == 0)):
            raise SpecError("must be whole numbers from 1", field="clients", value=clients)
        loads["clients"] = loads["clients"].astype(int)
    return compared(e, Workload(prompts, outputs, hit_rate), max_num_seqs=max_num_seqs, batch=static_batch, **loads)


def _numbers(values: Any, field: str) -> np.ndarray:
    """One number or several as an array of one axis; raises SpecError for none, and for what is no number."""
    try:
        found = np.atleast_1d(np.asarray(values, dtype=float))
    except (TypeError, ValueError):
        raise SpecError("must be a number, or several", field=field, value=values) from None
    if found.ndim != 1 or not found.size:
        raise SpecError("must be a number, or several", field=field, value=values)
    return found


def requests(
    arrivals: str = "poisson:1", input_lengths: str = "1024", output_lengths: str = "256", count: int = 1000, *, seed: int = 0
) -> Requests:
    """Requests from laws: arrivals such as "poisson:5", "gamma:5,cv=2", "diurnal:5,peak=2" or "closed:64"; lengths as in `Lengths.parse`.

    >>> import inferplan as ip
    >>> len(ip.requests("poisson:5", "512", "exponential:64", 100))
    100
    """
    prompts, outputs = Lengths.parse(input_lengths, "input_lengths"), Lengths.parse(output_lengths, "output_lengths")
    return Requests.drawn(laws.parse(arrivals), prompts, outputs, count, seed=seed)


def simulate(asked: Requests | Any, steps: Steps | deployment.Estimate, schedule: Schedule | None = None, **options: Any) -> Served:
    """What becomes of requests, step by step: a row each, with queue, time to first token, gaps and end.

    asked
        `Requests`, such as `inferplan.requests` makes, or a table with their columns.
    steps
        step times, or an estimate: then those of its deployment, under its engine's scheduler unless another is given, and times from
        the arrival have what host and front end take for a prompt, as clients measure them.
    options
        those of `inferplan.serving.simulate.simulate`: seed, replicas, routing, prefilling, acceptance, series, progress.

    Raises DoesNotFit where the engine does not start, or the cache can never hold a request.

    >>> import inferplan as ip
    >>> found = ip.simulate(ip.requests("poisson:2", count=20), ip.estimate("7b", "h100", "fp8"))
    >>> bool(found.done.all())
    True
    """
    if not isinstance(steps, deployment.Estimate):
        return simulated(asked, steps, schedule, **options)
    chosen = schedule or Schedule.of(steps.capacity)
    found = simulated(asked, case_steps(steps, chosen, asked.longest), chosen, **options)
    return with_front_end(found, steps, front_ends_of(steps, options.get("replicas", 1), options.get("prefilling")))


def load_curve(
    asked: Requests, e: deployment.Estimate, *, points: int = 10, slo: Slo | str | None = None, most_per_s: float | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> LoadCurve:  # fmt: skip
    """Latency against offered load: the same requests at each of so many rates, the knee, and the largest rate that meets limits.

    Raises NoFeasiblePlan where no rate meets them.

    >>> import inferplan as ip
    >>> found = ip.load_curve(ip.requests("poisson:1", count=40), ip.estimate("7b", "h100", "fp8"), points=3)
    >>> len(found.points)
    3
    """
    schedule = Schedule.of(e.capacity)
    steps = case_steps(e, schedule, asked.longest)
    limits = Slo.parse(slo, "slo") if isinstance(slo, str) else slo
    return curve_of(
        asked, lambda some: with_front_end(simulated(some, steps, schedule), e), points=points, most=most_per_s, slo=limits,
        progress=progress,
    )  # fmt: skip


def validate(
    cases: str | os.PathLike[str], *, by: str | Sequence[str] = ("quantity",), efficiency: str = "default", **told: Any
) -> Validation:
    """Predictions beside the known values of a case file, or of what a benchmark printed; `told` says columns of all rows.

    >>> import inferplan as ip
    >>> [round(o.error, 3) for o in ip.validate("examples/cases.csv").outcomes][:2]
    [0.0, 0.0]
    """
    from inferplan.calibrate.cases import read_cases
    from inferplan.calibrate.predict import Predictor
    from inferplan.calibrate.validate import outcomes
    from inferplan.roofline.efficiency import Efficiency

    by = [by] if isinstance(by, str) else by
    rows, columns = read_cases(os.fspath(cases), {name: str(value) for name, value in told.items()})
    for column in by:
        if column not in (*columns, "quantity", "case"):
            raise SpecError("is not a column of the case file", field="by", value=column)
    return Validation(outcomes(rows, Predictor(Efficiency.load(efficiency))), list(by))


def sweep(space: Any = None, *, jobs: int = 1, progress: Callable[[int, int], None] | None = None, **axes: Any) -> pd.DataFrame:
    """Every point of a grid as a row of a table, in base units: a `Space`, the path of its file, or its axes by name.

    axes
        those of `Space`: model, hardware, precision, kv_format, engine, tp, pp, batch, input_tokens ...; lists, or texts such as "1..64x2".

    >>> import inferplan as ip
    >>> ip.sweep(model="7b", hardware="h100,a100", precision="fp16", batch="1,8")["fits"].tolist()
    [True, True, True, True]
    """
    from inferplan.planner.space import Space
    from inferplan.planner.sweep import sweep as swept

    executor = axes.pop("executor", None)
    if space is None:
        found = Space.from_mapping(axes)
    elif axes:
        raise SpecError("stands beside a space: give one of the two", field=next(iter(axes)))
    else:
        found = space if isinstance(space, Space) else Space.load(space)
    return swept(found, jobs=jobs, progress=progress, executor=executor)


def launch_command(e: deployment.Estimate, **options: Any) -> Command:
    """The command that starts the deployment of an estimate in its engine; options are those of `inferplan.launch.command`.

    Raises DoesNotFit where it does not fit, Unsupported where the engine documents no option for what is asked.

    >>> import inferplan as ip
    >>> ip.launch_command(ip.estimate("llama-3.1-8b", "h100", "fp8")).argv[:2]
    ('vllm', 'serve')
    """
    from inferplan.launch.command import launch_command as command

    return command(e, **options)


def frame(found: Any) -> pd.DataFrame:
    """The rows of any result as a pandas table in base units: for `to_csv`, `to_parquet`, or arithmetic of your own.

    >>> import inferplan as ip
    >>> ip.frame(ip.compare(ip.estimate("7b", "h100", "fp8")))["model"].tolist()
    ['llama-2-7b']
    """
    import pandas as pd

    own = getattr(found, "frame", None)
    if own is not None:
        return cast("pd.DataFrame", own())
    return pd.DataFrame(_rows(found))


def _rows(found: Any) -> list[dict[str, Any]]:
    from inferplan.report import batching as kinds
    from inferplan.report import estimates, load_curve, quantization, speculation

    if isinstance(found, deployment.Estimate):
        return [estimates.flat(estimates.record(found))]
    if isinstance(found, Comparison):
        return [estimates.flat(estimates.record(e)) for e in found.estimates]
    if isinstance(found, Quantization):
        return quantization.rows(found.answers)
    if isinstance(found, Speculation):
        return speculation.rows(found)
    if isinstance(found, Compared):
        return kinds.rows(found)
    if isinstance(found, LoadCurve):
        return load_curve.curve_rows(found)
    if isinstance(found, Validation):
        return [o.row() for o in found.outcomes]
    raise SpecError("has no rows", field="frame", value=type(found).__name__)


def plot(found: Any, picture: str | None = None, *, ax: Axes | None = None) -> Picture:
    """The picture of any result; an estimate has several: roofline, breakdown, batch, context and memory.

    found
        an estimate, or what compare, quantize, speculate, batching, simulate, load_curve, plan, validate or pareto give.
    Raises SpecError for what has no picture.

    >>> import inferplan as ip
    >>> ip.plot(ip.estimate("7b", "h100", "fp8"), "memory")
    Picture('Llama 2 7B on NVIDIA H100 SXM5 80GB | fp8 weights and matmuls, bf16 KV | 1,024 tokens in, 256 out, batch 1')
    """
    if isinstance(found, deployment.Estimate):
        from inferplan.report.plots import PICTURES

        name = picture or "roofline"
        if name not in PICTURES:
            raise SpecError(f"is no picture; one of {', '.join(PICTURES)}", field="picture", value=name)
        return Picture(PICTURES[name](found, ax=ax))
    if picture is not None:
        raise SpecError("is for estimates: other results have one picture", field="picture", value=picture)
    return Picture(_drawn(found, ax))


def _drawn(found: Any, ax: Axes | None) -> Axes:
    from inferplan.planner.plan import Plan
    from inferplan.report import batching as kinds
    from inferplan.report import comparison_plots, parity, plan_plots, quantization_plots, serving_plots, speculation_plots

    drawers: tuple[tuple[type, Callable[[], Axes]], ...] = (
        (Comparison, lambda: comparison_plots.plot_comparison(found.estimates, ax=ax)),
        (Quantization, lambda: quantization_plots.plot_quantization(found.answers, ax=ax)),
        (Speculation, lambda: speculation_plots.plot_speculation(found, ax=ax)),
        (Compared, lambda: kinds.plot_batching(found, ax=ax)),
        (Served, lambda: serving_plots.plot_served(found, ax=ax)),
        (LoadCurve, lambda: serving_plots.plot_curve(found, ax=ax)),
        (Plan, lambda: plan_plots.plot_plan(found, ax=ax)),
        (Validation, lambda: parity.plot_parity(found.outcomes, _column(found.by), ax=ax)),
    )
    for kind, draw in drawers:
        if isinstance(found, kind):
            return draw()
    if hasattr(found, "columns") and "pareto" in found.columns:
        from inferplan.planner.pareto import X, Y
        from inferplan.report.sweep_plots import plot_frontier

        return plot_frontier(found, found.attrs.get("x", X), found.attrs.get("y", Y), ax=ax)
    raise SpecError("has no picture", field="plot", value=type(found).__name__)


def _column(by: Sequence[str]) -> str:
    return by[0] if by and by[0] != "quantity" else "engine"


__all__ = [
    "Comparison", "Picture", "Quantization", "Validation", "batching", "compare", "frame", "launch_command", "load_curve", "plot",
    "quantize", "requests", "simulate", "speculate", "sweep", "validate",
]  # fmt: skip
