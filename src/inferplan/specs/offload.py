"""Which of a model's layers lie in host memory, and who computes with them. Knows no model, no part and no time."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from inferplan.errors import SpecError


@dataclass(frozen=True, slots=True)
class Offload:
    """Layers in host memory, counted from the first.

    layers
        layers whose weights lie there; a fraction where an engine moves single tensors until a size is reached.
    experts
        layers whose routed experts lie there, beside those of `layers`.
    head
        whether the output projection lies there too.
    computed
        whether the host computes with what it holds, so that caches of `layers` lie there too; else the device reads the weights over
        its host link in every pass.
    stream_from
        new tokens in a pass from which the device reads weights over the link even where the host could compute.
    """

    layers: float = 0.0
    experts: int = 0
    head: bool = False
    computed: bool = False
    stream_from: float = np.inf

    @property
    def any(self) -> bool:
        """Whether anything lies in host memory."""
        return bool(self.layers > 0 or self.experts > 0 or self.head)

    def of_layers(self, indexes: np.ndarray) -> tuple[float, float]:
        """How many of these layers lie on the host whole, and of how many more the experts do.

        >>> Offload(layers=1.5, experts=3).of_layers(np.arange(4))
        (1.5, 1.5)
        """
        whole = float(np.clip(self.layers - indexes, 0.0, 1.0).sum())
        routed = float(np.clip(max(self.layers, self.experts) - indexes, 0.0, 1.0).sum())
        return whole, routed - whole

    def checked(self, layers: int) -> Offload:
        """The same, once it asks for no more layers than there are; raises SpecError."""
        for name in ("layers", "experts"):
            if not 0 <= getattr(self, name) <= layers:
                raise SpecError(f"must lie between 0 and the model's {layers} layers", field=f"offload.{name}", value=getattr(self, name))
        return self


NOTHING = Offload()
