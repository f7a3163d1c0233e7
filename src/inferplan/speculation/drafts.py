"""What can draft: a smaller model, a head on the target's own hidden state (EAGLE, Medusa), its prediction modules, n-grams of the text.

Each is a `Draft`: a model whose passes and bytes are counted like any other. Knows no clock and no acceptance.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from inferplan.engine.split import ways
from inferplan.errors import SpecError, Unsupported
from inferplan.memory.layer_kinds import layer_kinds
from inferplan.memory.weights import placed_bytes
from inferplan.ops import Numeric
from inferplan.readers.opening import open_model
from inferplan.specs.ffns import Dense, Experts
from inferplan.specs.mixers import Attention, LatentAttention
from inferplan.specs.model import Block, Model
from inferplan.specs.order import expand
from inferplan.specs.parallel import Parallel
from inferplan.specs.precision import Precision

Kind = Literal["model", "eagle", "eagle3", "medusa", "mtp", "ngram"]
HEADS = ("eagle", "eagle3", "medusa", "mtp", "ngram")
EAGLE3_VOCAB = 32_000
EAGLE3_STATES = 3
TITLES = {
    "eagle": "EAGLE head",
    "eagle3": "EAGLE-3 head",
    "medusa": "Medusa heads",
    "mtp": "multi-token prediction",
    "ngram": "n-grams of the text",
}


@dataclass(frozen=True, slots=True)
class Draft:
    """Who drafts.

    model, precision
        what one draft pass runs, None where the device does nothing (n-grams).
    shared
        parts of it that lie in the target already: its token table, its output head.
    inside
        whether its weights and cache are counted with the target's (prediction modules).
    parallel_heads
        whether one pass drafts all tokens at once, with a head for each (Medusa).
    exact
        whether what is written keeps the target's distribution as it is commonly run; Medusa's typical acceptance does not.
    assumed
        in words, what its published form leaves open.
    """

    kind: Kind
    title: str
    model: Model | None = None
    precision: Precision | None = None
    shared: tuple[str, ...] = ()
    inside: bool = False
    parallel_heads: bool = False
    exact: bool = True
    assumed: tuple[str, ...] = ()

    @property
    def name(self) -> str:
        """What it was asked as: the catalog name of a model, else its kind."""
        return self.model.name if self.kind == "model" and self.model else self.kind

    @property
    def params(self) -> int:
        """Parameters of its own, those it shares with the target left out; of Medusa those of one head."""
        held = self.model.weights() if self.model else []
        return sum(w.params for w in held if w.part not in self.shared)

    def weight_bytes(self, parallel: Parallel, heads: Numeric = 1) -> Numeric:
        """Bytes of its own weights on one rank, with `heads` of Medusa's; 0 where they are counted with the target's."""
        if self.model is None or self.precision is None or self.inside:
            return 0.0
        held = [(w, self.model.blocks.get(b), n) for b, _, w, n in placed_bytes(self.model, self.precision) if w.part not in self.shared]
        one = sum((size / ways(w, block, parallel) for w, block, size in held), 0.0)
        return one * heads if self.parallel_heads else one

    def kv_bytes_per_token(self, parallel: Parallel) -> Numeric:
        """Bytes that its cache adds to a token on one rank, windows not yet full; 0 where counted with the target's."""
        if self.model is None or self.precision is None or self.inside:
            return 0.0
        kinds = layer_kinds(self.model, self.precision, parallel)
        return sum((k.layers * k.token_bytes for k in kinds if k.kept != "state"), 0.0)


def draft_model(target: Model, model: Model, precision: Precision) -> Draft:
    """A smaller model as the draft; raises SpecError where it is not smaller, Unsupported where it writes no tokens."""
    if not model.generates:
        raise Unsupported(f"{model.title} writes no tokens, so it cannot draft")
    if model.params >= target.params:
        raise SpecError(
            f"is not smaller than the model itself: {model.params:,} parameters, {target.title} has {target.params:,}",
            field="draft", value=model.name,
        )  # fmt: skip
    return Draft("model", model.title, model, precision)


def head_named(text: str) -> str | None:
    """One of HEADS, however it is spelt; None where the text means a model.

    >>> head_named("EAGLE-3"), head_named("n-gram"), head_named("llama-3.2-1b")
    ('eagle3', 'ngram', None)
    """
    plain = text.lower().replace("-", "").replace("_", "").replace(" ", "")
    return plain if plain in HEADS else None


def draft_named(target: Model, precision: Precision, text: str, dtype: str | None = None) -> Draft:
    """The draft that a text means: one of HEADS, or a model by name or path, kept as it is stored (in 16 bit where that is 32).

    >>> from inferplan.readers.opening import open_model
    >>> draft_named(open_model("llama-3.1-70b").model, Precision.named("fp8"), "8b").precision.weights.name
    'bf16'
    """
    if (kind := head_named(text)) is not None:
        return head_of(target, precision, kind, dtype)
    opened = open_model(text)
    return draft_model(target, opened.model, Precision.named(dtype or opened.served).with_kv(precision.kv.name))


def head_of(target: Model, precision: Precision, kind: str, dtype: str | None = None) -> Draft:
    """A head of one of HEADS on a target: what its published form looks like on a model of these shapes.

    `dtype` is the format of its own weights; unsaid that of the target in 16 bit, as heads are published. What the published form
    leaves open is among `assumed`. Raises Unsupported where the target has no such thing, NotFound for an unknown format.

    >>> from inferplan.readers.opening import open_model
    >>> vicuna = open_model("llama-2-7b").model
    >>> round(head_of(vicuna, Precision.named("bf16"), "eagle").params / 1e9, 2)  # 0.24 billion are published
    0.24
    """
    if kind == "ngram":
        return Draft("ngram", TITLES[kind])
    if kind not in MAKERS:
        raise SpecError(f"is not one of {', '.join(HEADS)}", field="draft", value=kind)
    return MAKERS[kind](target, precision, dtype)


def _eagle(target: Model, precision: Precision, dtype: str | None) -> Draft:
    """One layer of the target over its hidden state joined with the next token's embedding; table and head are the target's."""
    block, assumed = _layer(target)
    join = {"name": "fc", "part": "mlp", "rows": target.hidden, "cols": 2 * target.hidden, "bias": target.hidden, "use": "matmul"}
    layer = {**_data(block), "norms": 1, "extra": [join]}
    model = _record(target, "eagle", layer, norms=0, head="own")
    return Draft("eagle", TITLES["eagle"], model, _own(target, precision, dtype), ("embedding", "head"), assumed=assumed)


def _eagle3(target: Model, precision: Precision, dtype: str | None) -> Draft:
    """One layer whose attention reads embedding and state side by side, the state joined of three; an output head of its own."""
    block, assumed = _layer(target)
    wide = [{**m, "inputs": 2 * target.hidden, "outputs": target.hidden} for m in _data(block)["mixers"]]
    if any(m["kind"] != "attention" for m in wide):
        raise Unsupported(f"an EAGLE-3 head on the latent attention of {target.title} is not described; name its config.json as the draft")
    join = {"name": "fc", "part": "mlp", "rows": target.hidden, "cols": EAGLE3_STATES * target.hidden, "use": "matmul"}
    vocab = min(EAGLE3_VOCAB, target.vocab)
    model = _record(target, "eagle3", {**_data(block), "mixers": wide, "norms": 3, "extra": [join]}, norms=1, head="own", head_vocab=vocab)
    assumed = (*assumed, f"an output head of {vocab:,} tokens, as in the published heads")
    return Draft("eagle3", TITLES["eagle3"], model, _own(target, precision, dtype), ("embedding",), assumed=assumed)


def _medusa(target: Model, precision: Precision, dtype: str | None) -> Draft:
    """A head per drafted token: one residual block and an output layer, all on the target's last hidden state."""
    inner = {"name": "resblock", "part": "mlp", "rows": target.hidden, "cols": target.hidden, "bias": target.hidden, "use": "matmul"}
    out = {"name": "out", "part": "head", "rows": target.vocab, "cols": target.hidden, "use": "matmul"}
    model = _record(target, "medusa", {"norms": 0, "extra": [inner, out]}, norms=0, head="none")
    assumed = ("one residual block per head, as published",)
    return Draft(
        "medusa", TITLES["medusa"], model, _own(target, precision, dtype), ("embedding",), parallel_heads=True, exact=False, assumed=assumed
    )


def _mtp(target: Model, precision: Precision, dtype: str | None) -> Draft:
    """The model's own prediction module, run once per drafted token; its weights and cache are counted with the model's."""
    if target.mtp is None:
        raise Unsupported(f"{target.title} has no multi-token-prediction modules")
    blocks = {name: _data(target.blocks[name]) for name in expand(target.mtp.layers)}
    extra = [e.model_dump() for e in target.mtp.extra]
    model = _model(target, "mtp", layers=target.mtp.layers, blocks=blocks, extra=extra, norms=0, head="own")
    modules = f"{target.mtp.modules} module{'s' if target.mtp.modules > 1 else ''}, run again for each further token"
    return Draft(
        "mtp", TITLES["mtp"], model, _own(target, precision, dtype, part="mtp"), ("embedding", "head"), inside=True, assumed=(modules,)
    )


MAKERS: dict[str, Callable[[Model, Precision, str | None], Draft]] = {"eagle": _eagle, "eagle3": _eagle3, "medusa": _medusa, "mtp": _mtp}


def _layer(target: Model) -> tuple[Block, tuple[str, ...]]:
    """The last layer of the target that attends, its window and experts taken off; what that assumes."""
    attending = [n for n in target.order if any(isinstance(m, (Attention, LatentAttention)) for m in _own_mixers(n, target))]
    if not attending:
        raise Unsupported(f"{target.title} has no attention, and heads are published for attention only")
    block = target.blocks[attending[-1]]
    mixer = next(m for m in block.mixers if isinstance(m, (Attention, LatentAttention)))
    plain = mixer.model_copy(update={"window": None, "keys": "own", **({"chunk": None} if isinstance(mixer, Attention) else {})})
    dense, assumed = _dense(block, target)
    if getattr(mixer, "window", None) or getattr(mixer, "chunk", None):
        assumed = (*assumed, "attention over the whole context")
    if len(attending) < len(target.order):
        assumed = (*assumed, "a layer of attention, where the model has others too")
    return Block(mixers=(plain,), ffns=(dense,)), ("one decoder layer of the target's shapes, as published", *assumed)


def _own_mixers(name: str, target: Model) -> list[Any]:
    """Mixers that look at the text itself, not at an encoder's output."""
    return [m for m in target.blocks[name].mixers if not getattr(m, "memory", None)]


def _dense(block: Block, target: Model) -> tuple[Dense, tuple[str, ...]]:
    dense = next((f for f in block.ffns if isinstance(f, Dense)), None)
    if dense is not None:
        return dense.model_copy(update={"shared_weights": False}), ()
    experts = next((f for f in block.ffns if isinstance(f, Experts)), None)
    width = experts.top_k * experts.width + (experts.shared.width if experts.shared else 0) if experts else 4 * target.hidden
    return Dense(width=width), (f"a dense block of {width:,} in place of the experts, as many columns as a token uses",)


def _data(block: Block) -> dict[str, Any]:
    return block.model_dump(exclude_unset=False)


def _record(target: Model, kind: str, layer: dict[str, Any], **rest: Any) -> Model:
    return _model(target, kind, layers="draft", blocks={"draft": layer}, **rest)


def _model(target: Model, kind: str, **rest: Any) -> Model:
    shape = {"hidden": target.hidden, "vocab": target.vocab, "context": target.context, "dtype": target.dtype}
    return Model.from_mapping({"name": f"{target.name}-{kind}", "title": f"{target.title} {TITLES[kind]}", **shape, **rest})


def _own(target: Model, precision: Precision, dtype: str | None, part: str = "") -> Precision:
    """The precision of a head: its weights in `dtype`, what it shares with the target as the target keeps it."""
    plain = target.dtype if target.dtype in ("fp16", "bf16") else "bf16"
    body = dtype or (precision.format_of(part).name if part else plain)
    head = precision.format_of("embedding" if target.head == "tied" else "head").name
    return Precision.named(f"body={body},head={head}").with_kv(precision.kv.name)


def draft_parallel(draft: Draft, target: Parallel, tp: int | None) -> Parallel:
    """How a draft is split: prediction modules like the target's layers, others over `tp` ranks of each attention group (unsaid: all).

    Raises SpecError where `tp` does not divide the target's.
    """
    if draft.inside:
        if tp is not None and tp != int(np.asarray(target.tp)):
            raise SpecError("prediction modules are split like the model itself", field="draft_tp", value=tp)
        return Parallel(target.tp, 1, target.dp, target.ep)
    own = int(np.asarray(target.tp)) if tp is None else tp
    if own < 1 or int(np.asarray(target.tp)) % own:
        raise SpecError(f"must divide the model's tensor parallelism of {int(np.asarray(target.tp))}", field="draft_tp", value=tp)
    return Parallel(own, 1, target.dp, 1)
