"""Speculative decoding on one deployment answered: gain at the load, by batch and draft length, memory it takes. Knows no screen."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from inferplan.deployment import MOST_SHOWN, Estimate
from inferplan.errors import SpecError, Unsupported
from inferplan.memory.capacity import Capacity, capacity
from inferplan.ops import Numeric
from inferplan.shown import Shown
from inferplan.speculation.acceptance import Acceptance
from inferplan.speculation.drafts import Draft, draft_parallel
from inferplan.speculation.rounds import Rounds, Target, Tree, best, rounds, turns_to_loss

LONGEST = 16  # draft tokens up to which a best number is looked for
WIDEST = 4096  # sequences up to which a loss is looked for
PADDING = 0.01  # by which tables of one tokenizer differ in length


@dataclass(frozen=True)
class Speculation(Shown):
    """A deployment with a draft beside the same without.

    draft_tokens
        drafts of a round: as asked, or what is best for the load.
    chosen
        whether they were chosen here.
    """

    plain: Estimate
    draft: Draft
    acceptance: Acceptance
    draft_tokens: int
    chosen: bool
    tree: Tree | None = None
    draft_tp: int | None = None
    eager: bool = False

    @property
    def target(self) -> Target:
        """What decodes."""
        e = self.plain
        return Target(e.model, e.hardware, e.precision, e.setting, self.eager)

    @property
    def context(self) -> float:
        """The context in the middle of the output."""
        return self.plain.load.middle_context

    def at(self, batch: Numeric, draft_tokens: Numeric) -> Rounds:
        """Rounds of other loads and draft lengths; arrays broadcast."""
        return rounds(
            self.target, self.draft, self.acceptance, batch=batch, draft_tokens=draft_tokens, context=self.context, tree=self.tree,
            draft_tp=self.draft_tp,
        )  # fmt: skip

    @cached_property
    def here(self) -> Rounds:
        """Rounds at the load."""
        return self.at(float(self.plain.load.batch), self.draft_tokens)

    @property
    def speed_up(self) -> float:
        """The gain at the load."""
        return float(np.asarray(self.here.speed_up))

    @property
    def lengths(self) -> np.ndarray:
        """Draft lengths that are compared: just the one of a tree or of a measured length, else those up to 16 that are known."""
        if self.tree is not None:
            return np.array([float(self.draft_tokens)])
        found = lengths_of(self.acceptance)
        return found if self.draft_tokens in found else np.append(found, float(self.draft_tokens))

    @cached_property
    def batches(self) -> np.ndarray:
        """Loads that are compared: powers of two up to what the engine holds, and the one asked for."""
        most = max(1.0, min(self.max_sequences, MOST_SHOWN))
        return np.unique(np.append(2.0 ** np.arange(np.floor(np.log2(most)) + 1), float(self.plain.load.batch)))

    @cached_property
    def sweep(self) -> Rounds:
        """Rounds over `batches` and `lengths`."""
        return self.at(self.batches[:, None], self.lengths[None, :])

    @property
    def best_lengths(self) -> np.ndarray:
        """For each of `batches` the best draft length; 0 where none pays."""
        chosen = best(self.sweep)
        gain = np.take_along_axis(np.asarray(self.sweep.speed_up), chosen[:, None], axis=-1)[:, 0]
        return np.where(gain > 1, self.lengths[chosen], 0.0)

    @property
    def best_gains(self) -> np.ndarray:
        """For each of `batches` the gain of the best draft length, 1 where none pays."""
        found: np.ndarray = np.maximum(np.nanmax(np.asarray(self.sweep.speed_up), axis=-1), 1.0)
        return found

    @cached_property
    def turns_to_loss(self) -> float | None:
        """The smallest batch from which the drafts asked for no longer pay; None where they do up to 4,096 sequences."""
        batch = np.unique((2.0 ** np.arange(0, np.log2(WIDEST) + 0.1, 0.25)).round())
        return turns_to_loss(batch, np.asarray(self.at(batch, self.draft_tokens).speed_up))

    # memory

    @cached_property
    def held(self) -> Capacity:
        """What the deployment holds with the draft: its weights and its cache beside those of the model."""
        e, c = self.plain, self.plain.capacity
        inside = self.draft.inside or e.model.mtp is None
        found = capacity(
            e.model, e.hardware, e.precision, e.setting.parallel, e.engine, max_model_len=c.launch.max_model_len,
            max_num_seqs=c.launch.max_num_seqs, max_num_batched_tokens=c.launch.max_num_batched_tokens, utilization=e.utilization,
            offload=e.setting.offload, draft_tokens=self.draft_tokens if inside else 0,
        )  # fmt: skip
        left = np.asarray(found.kv_cache_bytes_per_gpu) - self.draft_bytes
        own, added = np.asarray(found.kv_bytes_per_token_per_gpu), np.asarray(self.draft_kv_bytes_per_token)
        share = np.where(own + added > 0, own / np.maximum(own + added, 1e-30), 1.0)
        return found.holding(np.where(left > 0, left * share, left))

    @property
    def draft_bytes(self) -> float:
        """Bytes of the draft's own weights on one device; 0 for prediction modules, which count among the model's."""
        split = draft_parallel(self.draft, self.plain.setting.parallel, self.draft_tp)
        return float(np.asarray(self.draft.weight_bytes(split, self.draft_tokens)))

    @property
    def draft_weight_bytes(self) -> float:
        """The same, with what prediction modules add to the model's weights."""
        if not self.draft.inside:
            return self.draft_bytes
        return float(np.asarray(self.held.weight_bytes_per_gpu)) - float(np.asarray(self.plain.capacity.weight_bytes_per_gpu))

    @property
    def draft_kv_bytes_per_token(self) -> float:
        """Bytes that the draft's cache adds to a token on one device."""
        split = draft_parallel(self.draft, self.plain.setting.parallel, self.draft_tp)
        return float(np.asarray(self.draft.kv_bytes_per_token(split)))

    @property
    def kv_cache_tokens(self) -> float:
        """Tokens of cache with the draft."""
        return float(np.asarray(self.held.kv_cache_tokens))

    @property
    def tokens_lost(self) -> float:
        """Tokens of cache that the draft costs."""
        return float(np.asarray(self.plain.capacity.kv_cache_tokens)) - self.kv_cache_tokens

    @property
    def max_sequences(self) -> float:
        """Requests of this length that run at once with the draft, over all attention groups."""
        return float(np.asarray(self.held.max_sequences * self.held.groups))

    @property
    def fits(self) -> bool:
        """Whether the engine starts with the draft and holds the batch."""
        return bool(self.held.fits) and self.max_sequences >= self.plain.load.batch

    def tpot_band_s(self, tpot_s: Numeric) -> tuple[Numeric, Numeric] | None:
        """The ends of the 80 % band about times per token: as wide as without drafts; None where no band is known."""
        found = self.plain.band("tpot")
        return None if found is None else found.of(tpot_s)

    # what is written

    @property
    def vocabularies_differ(self) -> bool:
        """Whether a separate model has another vocabulary, so that its tokens are not the target's; padding within 1 % is none."""
        if self.draft.kind != "model" or self.draft.model is None:
            return False
        own, other = self.plain.model.vocab, self.draft.model.vocab
        return abs(own - other) > PADDING * max(own, other)


def lengths_of(acceptance: Acceptance) -> np.ndarray:
    """Draft lengths up to 16 for which an acceptance answers."""
    asked = np.arange(1.0, LONGEST + 1)
    known = asked[np.isfinite(np.asarray(acceptance.tokens(asked)))]
    return known if len(known) else np.array([float(acceptance.most or 1)])


def speculate(
    plain: Estimate, draft: Draft, acceptance: Acceptance, *, draft_tokens: int | None = None, tree: Tree | None = None,
    draft_tp: int | None = None, eager: bool = False,
) -> Speculation:  # fmt: skip
    """Speculative decoding on the deployment of an estimate.

    draft_tokens
        drafts of a round; unsaid, what is best for the load.
    draft_tp
        devices of each attention group over which a separate draft is split; unsaid all.

    Raises SpecError where the acceptance does not answer for these draft tokens, or a tree comes without them, Unsupported for an encoder.

    >>> from inferplan.deployment import estimate
    >>> from inferplan.names import hardware, model, precision
    >>> from inferplan.specs.parallel import Parallel
    >>> from inferplan.speculation.acceptance import of_rates
    >>> from inferplan.speculation.drafts import draft_model
    >>> bf16 = precision("bf16")
    >>> plain = estimate(model("llama-3.1-70b"), hardware("h100"), bf16, parallel=Parallel(tp=4))
    >>> found = speculate(plain, draft_model(plain.model, model("llama-3.1-8b"), bf16), of_rates([0.8]), draft_tokens=4)
    >>> 1.2 < found.speed_up < 3.0, found.fits
    (True, True)
    """
    if not plain.model.generates:
        raise Unsupported(f"{plain.model.title} writes no tokens, so there is nothing to draft")
    if tree is not None and draft_tokens is None:
        raise SpecError("needs the draft tokens in a row beside it (--draft-tokens)", field="tree", value=tree.nodes)
    first = 1 if draft_tokens is None else draft_tokens
    found = Speculation(plain, draft, acceptance, first, draft_tokens is None, tree, draft_tp, eager)
    if draft_tokens is None:
        lengths = lengths_of(acceptance)
        chosen = lengths[int(best(found.at(float(plain.load.batch), lengths)))]
        return replace(found, draft_tokens=int(chosen))
    if np.isnan(found.speed_up):
        known = ", ".join(str(n) for n, _ in acceptance.lengths)
        raise SpecError(f"has no measured accepted length; there is one for {known}", field="draft_tokens", value=draft_tokens)
    return found
