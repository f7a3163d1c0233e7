"""Feed-forward parts of a layer: dense and mixture of experts, each with its weights. Knows no FLOP and no clock."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from inferplan.specs.base import Record
from inferplan.specs.mixers import Count, Optional0
from inferplan.specs.weights import Part, Use, Weight, linear, vector


def feed_forward(
    part: Part,
    inputs: int,
    width: int,
    *,
    gated: bool,
    bias: bool = False,
    copies: int = 1,
    use: Use = "matmul",
    outputs: int | None = None,
) -> list[Weight]:
    """Up (twice when gated) and down projections of `copies` equal feed-forward blocks."""
    up = linear("gate_up" if gated else "up", part, inputs, width * (2 if gated else 1), bias=bias, copies=copies, use=use)
    return [up, linear("down", part, width, outputs or inputs, bias=bias, copies=copies, use=use)]


class Dense(Record):
    """A feed-forward block of `width`: three matrices when gated (SwiGLU, GeGLU), two when not."""

    kind: Literal["dense"] = "dense"
    width: Count
    gated: bool = True
    bias: bool = False
    inputs: Count | None = None
    outputs: Count | None = None
    in_norm: bool = False
    shared_weights: bool = False

    def weights(self, hidden: int) -> list[Weight]:
        """Up and down projections, after a norm of its own where it is shared between layers."""
        inputs = self.inputs or hidden
        block = feed_forward("mlp", inputs, self.width, gated=self.gated, bias=self.bias, outputs=self.outputs or hidden)
        return [vector("in_norm", "norm", inputs), *block] if self.in_norm else block


class SharedExpert(Record):
    """An expert every token passes; `gate` scales it by a sigmoid of one number per token."""

    width: Count
    gated: bool = True
    gate: bool = False
    bias: bool = False


class Experts(Record):
    """A mixture of `experts` blocks of `width`, of which each token uses `top_k`.

    correction_bias
        a per-expert bias for the choice alone: `buffer` where checkpoints store it beside the parameters, `parameter` where it is one.
    latent
        experts act on this narrower width, with a shared projection down and up (Nemotron-3, Kimi-K3).
    router_extra
        further router parameters (scales), elementwise.
    router_outputs
        scores per token, where they are fewer than the experts (product keys).
    null_experts
        experts without weights that pass a token through (LongCat, Zaya); the router scores them too.
    router_width
        the router scores through a block of this width: a projection, a norm, two further layers (Zaya).
    """

    kind: Literal["experts"] = "experts"
    experts: Count
    top_k: Count
    width: Count
    gated: bool = True
    bias: bool = False
    router_bias: bool = False
    correction_bias: Literal["none", "buffer", "parameter"] = "none"
    router_extra: Optional0 = 0
    router_outputs: Count | None = None
    null_experts: Optional0 = 0
    router_width: Count | None = None
    latent: Count | None = None
    latent_norm: bool = False
    latent_bias: bool = False
    shared: SharedExpert | None = None
    shared_copies: Count = 1

    def weights(self, hidden: int) -> list[Weight]:
        """Router, shared expert, latent projections, experts."""
        inner, scored = self.latent or hidden, self.router_outputs or self.experts + self.null_experts
        router = [*self._before_router(hidden), linear("router", "router", self.router_width or hidden, scored, bias=self.router_bias)]
        if self.correction_bias != "none":
            router += [vector("router.correction", "router", scored, buffer=self.correction_bias == "buffer")]
        router += [vector("router.scale", "router", self.router_extra)] if self.router_extra else []
        latent = self._latent(hidden, inner) if self.latent else []
        latent += [vector("latent_norm", "norm", inner)] if self.latent_norm else []
        experts = feed_forward("experts", inner, self.width, gated=self.gated, bias=self.bias, copies=self.experts, use="expert")
        return [*router, *self._shared(hidden), *latent, *(w.named("experts") for w in experts)]

    def _before_router(self, hidden: int) -> list[Weight]:
        if not self.router_width:
            return []
        down = linear("router.down", "router", hidden, self.router_width, bias=True)
        inner = linear("router.inner", "router", self.router_width, self.router_width, bias=True, copies=2)
        return [down, vector("router.norm", "norm", self.router_width), inner]

    def _latent(self, hidden: int, inner: int) -> list[Weight]:
        down = linear("latent_down", "mlp", hidden, inner, bias=self.latent_bias)
        return [down, linear("latent_up", "mlp", inner, hidden, bias=self.latent_bias)]

    def _shared(self, hidden: int) -> list[Weight]:
        if not self.shared:
            return []
        block = feed_forward(
            "shared_expert", hidden, self.shared.width, gated=self.shared.gated, bias=self.shared.bias, copies=self.shared_copies
        )
        gate = [linear("shared_gate", "router", hidden, 1)] if self.shared.gate else []
        return [*(w.named("shared") for w in block), *gate]


FeedForward = Annotated[Dense | Experts, Field(discriminator="kind")]
