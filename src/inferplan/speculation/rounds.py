"""Rounds of drafts and verify on a deployment: their times, what they gain, where they turn into a loss. Knows no screen and no source.

A verify is a pass over one token more than the drafts for each sequence: its cache reads, its experts' union and its logits are those of
the roofline. Draft passes are decode steps of the draft. Plain decoding is the same deployment without a draft.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from inferplan.deployment import in_flight
from inferplan.engine.segment import Segment
from inferplan.engine.step import Setting, Step, before, decode, step, verify
from inferplan.errors import SpecError
from inferplan.ops import Numeric
from inferplan.specs.hardware import Accelerator
from inferplan.specs.model import Model
from inferplan.specs.precision import Precision
from inferplan.speculation.acceptance import MAX_DRAFT_TOKENS, Acceptance
from inferplan.speculation.drafts import Draft, draft_parallel
from inferplan.speculation.host import EAGER, Host, host
from inferplan.speculation.theory import speed_up, walltime_factor


@dataclass(frozen=True, slots=True)
class Target:
    """What decodes: a model on a part in a precision, and how its passes are run.

    eager
        whether kernels are launched one by one from the host, as research code on Hugging Face transformers does.
    own_host
        times of engine and host in place of those that are shipped.
    """

    model: Model
    hardware: Accelerator
    precision: Precision
    setting: Setting
    eager: bool = False
    own_host: Host | None = None

    @property
    def host(self) -> Host:
        """What engine and host add to a round."""
        return self.own_host or host(EAGER if self.eager else self.setting.engine, ideal=self.setting.ideal)

    def pass_s(self, run: Step) -> Numeric:
        """Seconds of a pass of the model: with the engine's overhead, or as long as the host needs to launch it."""
        if not self.eager:
            return run.time_s
        return np.maximum(device_s(run), self.host.eager_s(run.layers))


@dataclass(frozen=True, slots=True)
class Tree:
    """Candidates in a tree: `nodes` tokens verified per sequence, the last accepted one among them."""

    nodes: int

    def width(self, draft_tokens: Numeric) -> Numeric:
        """Nodes that one draft pass adds in the mean."""
        found: Numeric = np.ceil((self.nodes - 1) / np.maximum(np.asarray(draft_tokens, dtype=float), 1))
        return found


@dataclass(frozen=True, slots=True)
class Rounds:
    """Speculative decoding over loads and draft lengths: arrays that broadcast over `batch` and `draft_tokens`.

    decode_s
        a decode step without drafts.
    verify_s, draft_s, overhead_s
        of one round: the target's pass, the draft's passes on the device, what engine and host add to them.
    tokens
        tokens that a round yields for each sequence in the mean; not a number where the acceptance is not known.
    """

    batch: Numeric
    draft_tokens: Numeric
    decode_s: Numeric
    verify_s: Numeric
    draft_s: Numeric
    overhead_s: Numeric
    tokens: Numeric

    @property
    def round_s(self) -> Numeric:
        """A whole round."""
        return self.draft_s + self.verify_s + self.overhead_s

    @property
    def tpot_s(self) -> Numeric:
        """Time per output token of a sequence."""
        return self.round_s / self.tokens

    @property
    def speed_up(self) -> Numeric:
        """By how much decoding gets faster; below 1 it gets slower."""
        return speed_up(self.tokens, self.decode_s, self.round_s)

    @property
    def cost(self) -> Numeric:
        """The `c` of the equations: one drafted token, with what the host adds to it, over a decode step."""
        found: Numeric = (self.draft_s + self.overhead_s) / np.asarray(self.draft_tokens, dtype=float) / self.decode_s
        return found

    @property
    def verify_ratio(self) -> Numeric:
        """A verify over a decode step; the equations take it as 1."""
        return self.verify_s / self.decode_s

    @property
    def free_verify_speed_up(self) -> Numeric:
        """What theorem 3.8 gives at this cost: the gain if a verify took no longer than a decode step."""
        return walltime_factor(self.tokens, self.draft_tokens, self.cost)

    @property
    def output_tokens_per_s(self) -> Numeric:
        """Output tokens per second of all sequences."""
        return np.asarray(self.batch, dtype=float) / self.tpot_s


def device_s(run: Step) -> Numeric:
    """Seconds of a pass on the device alone."""
    return np.maximum(run.time_s - run.overhead_s, run.floor_s)


def rounds(
    target: Target, draft: Draft, acceptance: Acceptance, *, batch: Numeric, draft_tokens: Numeric, context: Numeric,
    tree: Tree | None = None, draft_tp: int | None = None,
) -> Rounds:  # fmt: skip
    """Rounds of `draft_tokens` drafts for `batch` sequences that hold `context` tokens; arrays broadcast.

    Raises SpecError for draft tokens outside 1 to 256, or a tree with fewer nodes than drafts.

    >>> from inferplan.names import hardware, model, precision
    >>> from inferplan.speculation.acceptance import of_rates
    >>> from inferplan.speculation.drafts import draft_model
    >>> big, small, bf16 = model("llama-3.1-70b"), model("llama-3.1-8b"), precision("bf16")
    >>> ideal = Target(big, hardware("h100"), bf16, Setting())
    >>> found = rounds(ideal, draft_model(big, small, bf16), of_rates([0.8]), batch=1, draft_tokens=4, context=1024)
    >>> round(float(found.cost), 3), round(float(found.speed_up), 2)
    (0.109, 2.34)
    """
    g = np.asarray(draft_tokens, dtype=float)
    _check(g, tree)
    at_once = in_flight(batch, target.setting.parallel)
    plain = target.pass_s(decode(target.model, target.hardware, target.precision, context=context, batch=at_once, setting=target.setting))
    nodes = g + 1 if tree is None else tree.nodes + 0 * g

    checked = verify(
        target.model, target.hardware, target.precision, context=context, draft=nodes - 1, batch=at_once, setting=target.setting
    )  # fmt: skip
    return Rounds(
        batch=batch,
        draft_tokens=draft_tokens,
        decode_s=plain,
        verify_s=target.pass_s(checked),
        draft_s=draft_s(target, draft, at_once, g, context, tree, draft_tp),
        overhead_s=overhead_s(target.host, draft, np.asarray(batch, dtype=float), g, tree),
        tokens=acceptance.tokens(g),
    )


def _check(g: np.ndarray, tree: Tree | None) -> None:
    if not np.all((g >= 1) & (g <= MAX_DRAFT_TOKENS) & (g == np.floor(g))):
        raise SpecError(f"must be whole and lie between 1 and {MAX_DRAFT_TOKENS}", field="draft_tokens", value=float(np.min(g)))
    if tree is not None and not np.all(tree.nodes > g):
        raise SpecError("must hold more tokens than are drafted in a row", field="tree", value=tree.nodes)


def draft_s(
    target: Target, draft: Draft, batch: Numeric, g: np.ndarray, context: Numeric, tree: Tree | None, draft_tp: int | None
) -> Numeric:
    """Seconds of a round's draft passes on the device: one per draft, or as many heads at once; nodes of a tree side by side."""
    if draft.model is None or draft.precision is None:
        return 0.0 * g
    s = target.setting
    setting = Setting(draft_parallel(draft, s.parallel, draft_tp), s.efficiency, s.engine, s.network)
    model, precision = draft.model, draft.precision

    def passed(width: Numeric, heads: Numeric = 1.0) -> Numeric:
        run = step(model, target.hardware, precision, Segment(batch, width, before(context, 1), logits=width), setting=setting)
        alone = heads * device_s(run)
        return np.maximum(alone, target.host.eager_s(run.layers)) if target.eager else alone

    if draft.parallel_heads:
        return passed(1.0, g)
    if tree is None:
        return g * passed(1.0)
    return passed(1.0) + (g - 1) * passed(tree.width(g))


def overhead_s(host: Host, draft: Draft, batch: Numeric, g: np.ndarray, tree: Tree | None) -> Numeric:
    """Seconds that engine and host add to a round."""
    steps = 0.0 if draft.model is None else 1.0 if draft.parallel_heads else g
    each = host.draft_step + (host.tree_step if tree else 0.0)
    once = host.round + (host.tree_round if tree else 0.0)
    return once + steps * each + batch * (host.per_sequence + (host.lookup if draft.model is None else 0.0)) + 0.0 * g


def best(found: Rounds) -> np.ndarray:
    """The index along the last axis at which decoding is fastest; the axis is that of draft tokens."""
    gain = np.where(np.isnan(np.asarray(found.speed_up)), -np.inf, found.speed_up)
    chosen: np.ndarray = np.argmax(gain, axis=-1)
    return chosen


def turns_to_loss(batch: np.ndarray, gain: np.ndarray) -> float | None:
    """The smallest whole batch from which decoding no longer gets faster, between those of a sweep; None where it does at all of them.

    1 where it does not even for one sequence.

    >>> turns_to_loss(np.array([1.0, 2.0, 4.0, 8.0]), np.array([2.0, 1.5, 1.1, 0.9]))
    6.0
    """
    lost = np.flatnonzero(np.asarray(gain) <= 1)
    if not len(lost):
        return None
    i = int(lost[0])
    if i == 0:
        return float(batch[0])
    crossing = np.interp(-1.0, -gain[i - 1 : i + 1], np.log(batch[i - 1 : i + 1]))
    return float(np.ceil(np.exp(crossing)))
