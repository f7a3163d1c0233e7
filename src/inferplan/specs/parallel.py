"""How a model is spread over devices: tensor, pipeline, data, expert and context parallelism. Knows no model and no link.

Fields are numbers or arrays that broadcast; what does not divide is a mask, never an exception, so that a sweep survives.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from inferplan.errors import SpecError

Numeric = float | NDArray[Any]


@dataclass(frozen=True, slots=True)
class Parallel:
    """A deployment of tp x cp x dp x pp devices.

    tp
        tensor parallel: devices that share each layer.
    pp
        pipeline stages.
    dp
        attention data parallel: groups of tp devices that hold attention in full and share the experts; a sequence lives in one.
    ep
        expert parallel: how many ways the experts are dealt out; each expert is split over tp x dp / ep devices.
    dcp
        decode context parallel: how many ways cached tokens are dealt out over the tp devices.
    cp
        context parallel: groups of tp devices that share the tokens of a prompt, and keep a part of its cache each; all weights on each.
    """

    tp: Numeric = 1
    pp: Numeric = 1
    dp: Numeric = 1
    ep: Numeric = 1
    dcp: Numeric = 1
    cp: Numeric = 1

    @property
    def gpus(self) -> Numeric:
        """Devices in all."""
        return self.tp * self.pp * self.dp * self.cp

    @property
    def cache_ways(self) -> Numeric:
        """Over how many ranks the tokens of one cache are dealt out."""
        return self.dcp * self.cp

    @property
    def group(self) -> Numeric:
        """Devices that share a layer's experts."""
        return self.tp * self.dp

    @property
    def moe_tp(self) -> Numeric:
        """Ways in which one expert is split."""
        return self.group / self.ep

    @property
    def single(self) -> bool:
        """Whether this is one device."""
        return bool(np.all(np.asarray(self.gpus) == 1))

    def checked(self) -> Parallel:
        """The same, once every field is a positive whole number and the experts' split comes out even; raises SpecError."""
        for name in ("tp", "pp", "dp", "ep", "dcp", "cp"):
            value = np.asarray(getattr(self, name), dtype=float)
            if not np.all((value >= 1) & (value == np.floor(value)) & (value <= 4096)):
                raise SpecError("must be a whole number from 1 to 4096", field=name, value=getattr(self, name))
        if not np.all(np.asarray(self.group) % np.asarray(self.ep) == 0):
            raise SpecError("must divide tp x dp", field="ep", value=self.ep)
        if not np.all(np.asarray(self.tp) % np.asarray(self.dcp) == 0):
            raise SpecError("must divide tp", field="dcp", value=self.dcp)
        return self


ONE = Parallel()
