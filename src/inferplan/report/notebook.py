"""What `import inferplan` gives: estimates that show themselves as tables in a terminal, as HTML in a notebook, and as frames."""

from __future__ import annotations

import io
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any

from inferplan import deployment
from inferplan.report import estimates
from inferplan.report.screen import Bold

if TYPE_CHECKING:
    import pandas as pd
    from rich.console import Console

    from inferplan.explain import Node

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

    def _repr_html_(self) -> str:
        """The screen, where a notebook shows the object."""
        return html(self, asked_model=self.model.name, asked_gpu=self.hardware.name)


def html(e: deployment.Estimate, *, asked_model: str, asked_gpu: str) -> str:
    """The screen as a piece of HTML."""
    from rich.console import Console

    page = Console(file=io.StringIO(), record=True, width=WIDTH, highlight=False, emoji=False, markup=False)
    estimates.show_estimate(e, page, asked_model=asked_model, asked_gpu=asked_gpu)
    return page.export_html(code_format=PAGE, inline_styles=True)


def estimate(*args: Any, **options: Any) -> Estimate:
    """The estimate of one model on one kind of part; arguments are those of `inferplan.deployment.estimate`."""
    found = deployment.estimate(*args, **options)
    return Estimate(**{f.name: getattr(found, f.name) for f in fields(found)})
