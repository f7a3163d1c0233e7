"""Parameters of a model by what they are for: totals, active ones, per layer. Knows no number format and no byte.

Terms follow the usage of model cards. A tied head counts once. Multi-token-prediction modules are counted apart.
"""

from __future__ import annotations

from dataclasses import dataclass

from inferplan.specs.model import Model
from inferplan.specs.weights import Weight, params


@dataclass(frozen=True, slots=True)
class Counts:
    """Parameter counts of one model.

    active
        text parameters less the experts a token does not use.
    active_read
        the same less tables of which a token reads one row: the parameters read per decoded token at batch 1.
    per_layer
        parameters of each layer in order.
    mtp
        parameters of multi-token-prediction modules that are theirs alone; `mtp_copies` those that repeat embedding and head.
    """

    total: int
    embedding: int
    aux_embedding: int
    head: int
    head_bias: int
    attention: int
    recurrent: int
    mlp: int
    router: int
    router_buffers: int
    shared_expert: int
    experts: int
    norm: int
    vision: int
    other: int
    text: int
    active: int
    active_read: int
    per_layer: tuple[int, ...]
    moe_layers: int
    mtp: int
    mtp_copies: int


def by_part(weights: list[Weight], *parts: str) -> int:
    """Parameters of the named parts.

    >>> from inferplan.specs.weights import linear
    >>> by_part([linear("q", "attention", 4, 4), linear("up", "mlp", 4, 8)], "attention")
    16
    """
    return params(w for w in weights if w.part in parts)


def counts(model: Model) -> Counts:
    """Every count of a model, from its list of weight tensors."""
    weights = model.weights()
    experts, vision = by_part(weights, "experts"), by_part(weights, "vision")
    embedding, aux = by_part(weights, "embedding"), by_part(weights, "aux_embedding")
    bias = model.vocab if model.head_bias else 0
    total = params(weights)
    active = total - vision - experts + active_experts(model)
    return Counts(
        total=total, embedding=embedding, aux_embedding=aux, head=by_part(weights, "head") - bias, head_bias=bias,
        attention=by_part(weights, "attention", "indexer"), recurrent=by_part(weights, "recurrent"), mlp=by_part(weights, "mlp", "mlp_aux"),
        router=by_part(weights, "router"), router_buffers=sum(w.params for w in weights if w.buffer),
        shared_expert=by_part(weights, "shared_expert"), experts=experts, norm=by_part(weights, "norm"), vision=vision,
        other=by_part(weights, "other"), text=total - vision, active=active,
        active_read=active - aux - (embedding if model.head != "tied" else 0), per_layer=per_layer(model),
        moe_layers=sum(1 for name in model.order if model.blocks[name].experts), mtp=params(model.mtp_weights()),
        mtp_copies=mtp_copies(model),
    )  # fmt: skip


def active_experts(model: Model) -> int:
    """Parameters of the routed experts that one token uses, over all layers; tensors that several layers share count once."""
    used = 0
    for count, name, weights in model.layer_weights():
        moe = model.blocks[name].experts
        if moe:
            used += count * by_part(weights, "experts") * moe.top_k // moe.experts
    return used


def per_layer(model: Model) -> tuple[int, ...]:
    """Parameters of each layer in order; weights shared between layers stand on the first that uses them."""
    sizes = {name: params(block.weights(model.hidden, first=not block.shares)) for name, block in model.blocks.items()}
    found: list[int] = []
    seen: set[int] = set()
    for name in model.order:
        block = model.blocks[name]
        first = block.shares and block.share_group not in seen
        seen |= {block.share_group} if first else set()
        found.append(params(block.weights(model.hidden)) if first else sizes[name])
    return tuple(found)


def mtp_copies(model: Model) -> int:
    """Parameters that checkpoints repeat beside the prediction modules: the token table and the head."""
    if not model.mtp or not model.mtp.stored_copies:
        return 0
    return 2 * model.mtp.modules * model.vocab * model.hidden
