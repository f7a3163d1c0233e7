"""What `import inferplan` gives: estimates that show themselves as tables in a terminal, as HTML in a notebook, and as frames."""

from __future__ import annotations

import io
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any

from inferplan import deployment
from inferplan.errors import SpecError
from inferplan.readers.opening import open_model
from inferplan.report import estimates
from inferplan.report.screen import Bold
from inferplan.specs.hardware import Accelerator
from inferplan.specs.model import Model
from inferplan.specs.parallel import Parallel
from inferplan.specs.precision import Precision

if TYPE_CHECKING:
    import pandas as pd
    from rich.console import Console

    from inferplan.explain import Node
    from inferplan.report.answers import Picture

WIDTH = 110
PAGE = "<pre style=\"font-family:Menlo,'DejaVu Sans Mono',consolas,monospace;line-height:1.25\">{code}</pre>"


@dataclass(frozen=True, slots=True)
class Estimate(deployment.Estimate):
    """An estimate that can be looked at and put into a table."""

    def show(self, out: Console | None = None) -> None:
        """Print the screen of `inferplan estimate`."""
        from inferplan.report.screen import console

        estimates.show_estimate(self, out or console(), asked_model=self.model.name, asked_gpu=self.hardware.name)

    def record(self) -> dict[str, Any]:
        """Every number under the glossary's keys in base units, as `inferplan estimate --json` prints them."""
        return estimates.record(self)

    def frame(self) -> pd.DataFrame:
        """The record as one row, passes under dotted names; rows of several estimates go together with `pandas.concat`.

        >>> import inferplan as ip
        >>> ip.estimate(ip.model("7b"), ip.hardware("h100"), ip.precision("fp8")).frame().loc[0, "weight_bytes"].item()
        7000826624.0
        """
        import pandas as pd

        return pd.DataFrame([estimates.flat(self.record())])

    def explain(self, quantity: str) -> Node:
        """One number opened: its equation, its inputs and where each of them comes from; raises NotFound with near misses.

        >>> import inferplan as ip
        >>> ip.estimate(ip.model("7b"), ip.hardware("h100"), ip.precision("fp8")).explain("weights").unit
        'B'
        """
        from inferplan.explain import explain

        return explain(quantity, self)

    def batches(self) -> pd.DataFrame:
        """More requests at once, one row each: throughput, times, floor, utilisation, price and energy."""
        import pandas as pd

        return pd.DataFrame(estimates.batch_record(self))

    def operators(self) -> pd.DataFrame:
        """Every operator of prefill and of a decode step: kernel, number type, FLOPs, bytes and seconds over all its layers."""
        import pandas as pd

        return pd.DataFrame([row for name in ("prefill", "decode") for row in estimates.operator_record(getattr(self, name), name)])

    def __rich_console__(self, console: Any, options: Any) -> Any:
        """The screen, where rich prints the object."""
        from rich.text import Text

        for piece in estimates.screen(self, asked_model=self.model.name, asked_gpu=self.hardware.name):
            yield Text(piece, style="bold" if isinstance(piece, Bold) else "") if isinstance(piece, str) else piece

    def plot(self, picture: str = "roofline") -> Picture:
        """A picture: roofline, breakdown, batch, context or memory."""
        from inferplan.report.answers import plot

        return plot(self, picture)


def html(e: deployment.Estimate, *, asked_model: str, asked_gpu: str) -> str:
    """The screen as a piece of HTML."""
    from rich.console import Console

    page = Console(file=io.StringIO(), record=True, width=WIDTH, highlight=False, emoji=False, markup=False)
    estimates.show_estimate(e, page, asked_model=asked_model, asked_gpu=asked_gpu)
    return page.export_html(code_format=PAGE, inline_styles=True)


def estimate(
    model: Model | str,
    hardware: Accelerator | str,
    precision: Precision | str = "auto",
    *,
    input_tokens: int = 1024,
    output_tokens: int = 256,
    batch: int = 1,
    parallel: Parallel | int = 1,
    engine: str = "vllm",
    kv_format: str | None = None,
    **options: Any,
) -> Estimate:
    """What a deployment does with one load: memory, times beside their floors, rates and price, each in base units.

    model, hardware, precision
        specs, or their names: a catalog name, a Hub id or a path for a model, a name or a path for a part. Precision `"auto"` is the one
        that the checkpoint is served in.
    input_tokens, output_tokens, batch
        tokens of each request, and requests at once.
    parallel
        devices that share each layer (tensor parallel), or a `Parallel` of other splits.
    engine, kv_format
        who serves, with memory and overhead of its newest release known; the format of the cache.
    options
        all others of `inferplan.deployment.estimate`: cached, version, efficiency, network, max_model_len, max_num_seqs, utilization,
        context, images, host, gpu_layers, cpu_experts, overlap, expert_skew ...

    The result shows itself, and answers for `frame()`, `record()`, `batches()`, `operators()`, `explain(quantity)` and `plot(picture)`.
    Raises NotFound for an unknown name, with near misses, SpecError for a number out of range, Unsupported where a part lacks a number
    that is needed. A load that does not fit is no error: `fits` is then False.

    >>> import inferplan as ip
    >>> found = ip.estimate("7b", "h100", "fp8", batch=8)
    >>> found.fits, 0 < found.floor_tpot_s < found.tpot_s
    (True, True)
    """
    shape, held = _shape(model, precision, engine, kv_format)
    part = Accelerator.find(hardware) if isinstance(hardware, str) else hardware
    split = Parallel(tp=parallel) if isinstance(parallel, int) else parallel
    found = deployment.estimate(
        shape, part, held, input_tokens=input_tokens, output_tokens=output_tokens, batch=batch, parallel=split, engine=engine, **options
    )
    return Estimate(**{f.name: getattr(found, f.name) for f in fields(found)})


def _shape(model: Model | str, precision: Precision | str, engine: str, kv_format: str | None) -> tuple[Any, Precision]:
    """A model and its precision, where names stand for them."""
    opened = open_model(model) if isinstance(model, str) else None
    if isinstance(precision, Precision):
        return (opened.told if opened else model), precision
    if precision != "auto":
        return (opened.told if opened else model), Precision.named(precision, kv_format)
    if opened is None:
        raise SpecError("is known for a model by its name or file alone: name the precision", field="precision", value="auto")
    return opened.told, Precision.named(opened.stored if engine == "ideal" else opened.served, kv_format)
