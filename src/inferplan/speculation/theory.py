"""The equations of speculative decoding (Leviathan, Kalman, Matias 2023): tokens kept, speed-up, operations. Knows no model and no part.

Letters as in the paper: `a` is the acceptance rate, `g` how many tokens are drafted, `c` the cost of a draft pass over that of the
target's. Everything broadcasts.
"""

from __future__ import annotations

import numpy as np

from inferplan.errors import SpecError
from inferplan.formula import formula
from inferplan.ops import Numeric

PAPER = "Leviathan, Kalman, Matias 2023, Fast Inference from Transformers via Speculative Decoding (arXiv:2211.17192)"
MOST = 64  # drafts up to which a best number is looked for
HALVINGS = 60  # of the interval from 0 to 1: below what a double tells apart


@formula("where(a == 1, g + 1, (1 - a ** (g + 1)) / where(a == 1, 1, 1 - a))", unit="tokens", ref=f"{PAPER}, equation 1")
def expected_tokens(a: Numeric, g: Numeric) -> Numeric:
    """Tokens that one verify yields in the mean: kept drafts and the one that the target adds itself.

    Holds where each draft token is kept with the same probability, whatever came before. Between 1 (a = 0) and g + 1 (a = 1).

    >>> round(float(expected_tokens(0.8, 4)), 4), float(expected_tokens(0.0, 4)), float(expected_tokens(1.0, 4))
    (3.3616, 1.0, 5.0)
    """
    rate, count = np.asarray(a, dtype=float), np.asarray(g, dtype=float)
    with np.errstate(divide="ignore", invalid="ignore"):
        found: Numeric = np.where(rate == 1, count + 1, -np.expm1((count + 1) * np.log1p(rate - 1)) / np.where(rate == 1, 1.0, 1 - rate))
    return found


@formula("tokens / (g * c + 1)", unit="x", ref=f"{PAPER}, theorem 3.8")
def walltime_factor(tokens: Numeric, g: Numeric, c: Numeric) -> Numeric:
    """By how much decoding gets faster where a verify takes as long as a decode step.

    >>> round(float(walltime_factor(expected_tokens(0.8, 4), 4, 0.05)), 4)
    2.8013
    """
    found: Numeric = np.asarray(tokens, dtype=float) / (np.asarray(g, dtype=float) * c + 1)
    return found


@formula("(g * c + g + 1) / tokens", unit="x", ref=f"{PAPER}, theorem 3.11")
def operations_factor(tokens: Numeric, g: Numeric, c: Numeric) -> Numeric:
    """By how much the operations per token grow; `c` is here the draft's operations over the target's, of one token.

    >>> round(float(operations_factor(expected_tokens(0.6, 2), 2, 0.0)), 2)
    1.53
    """
    found: Numeric = (np.asarray(g, dtype=float) * c + g + 1) / np.asarray(tokens, dtype=float)
    return found


@formula("tokens * decode_s / round_s", unit="x", ref="tokens of a round over those that plain decoding makes in the same time")
def speed_up(tokens: Numeric, decode_s: Numeric, round_s: Numeric) -> Numeric:
    """By how much decoding gets faster where a round of drafts and verify takes `round_s`; with a verify as long as a decode step and
    drafts of `c` times that, this is `walltime_factor`.

    >>> float(speed_up(3.0, 10e-3, 15e-3))
    2.0
    """
    found: Numeric = np.asarray(tokens, dtype=float) * decode_s / round_s
    return found


@formula("1 - divergence", unit="share", ref=f"{PAPER}, corollary 3.6: 1 minus the mean of D_LK")
def acceptance_rate(divergence: Numeric) -> Numeric:
    """The share of drafted tokens that is kept, from the mean distance of draft and target.

    >>> acceptance_rate(0.2)
    0.8
    """
    return 1 - divergence


@formula("minimum(q, p / lenience)", unit="share", ref=f"{PAPER}, appendix A.5: lenience 1 is the exact scheme")
def kept_mass(p: Numeric, q: Numeric, lenience: Numeric) -> Numeric:
    """Of the draft's probability `q` of a token, what is kept where the target gives it `p`.

    >>> float(kept_mass(0.2, 0.5, 1.0)), float(kept_mass(0.2, 0.5, 0.5))
    (0.2, 0.4)
    """
    kept: Numeric = np.minimum(np.asarray(q, dtype=float), np.asarray(p, dtype=float) / lenience)
    return kept


def divergence(p: np.ndarray, q: np.ndarray, lenience: float = 1.0) -> Numeric:
    """D_LK of target `p` and draft `q`, distributions along the last axis (tokens), a figure for each of the others.

    A lenience below 1 keeps more and changes what is written.

    >>> float(divergence(np.array([0.5, 0.5]), np.array([0.75, 0.25])))
    0.25
    """
    found: Numeric = 1 - np.asarray(kept_mass(p, q, lenience)).sum(axis=-1)
    return found


def gains(a: Numeric, c: Numeric) -> Numeric:
    """Whether some number of drafts makes decoding faster: corollary 3.9.

    >>> bool(gains(0.3, 0.2)), bool(gains(0.2, 0.2))
    (True, False)
    """
    found: Numeric = np.asarray(a, dtype=float) > np.asarray(c, dtype=float)
    return found


def best_draft_tokens(a: Numeric, c: Numeric, *, most: int = MOST) -> Numeric:
    """How many drafts make decoding fastest by theorem 3.8, at most `most`; 0 where none does.

    >>> float(best_draft_tokens(0.8, 0.05)), float(best_draft_tokens(0.1, 0.2))
    (8.0, 0.0)
    """
    g = np.arange(most + 1.0)
    rate, cost = np.asarray(a, dtype=float)[..., None], np.asarray(c, dtype=float)[..., None]
    found: Numeric = np.argmax(walltime_factor(expected_tokens(rate, g), g, cost), axis=-1) * 1.0
    return found


def rate_of(tokens: Numeric, g: Numeric) -> Numeric:
    """The acceptance rate at which a chain of `g` drafts yields so many tokens: the inverse of `expected_tokens`.

    Raises SpecError where that is not between 1 and g + 1.

    >>> round(float(rate_of(3.3616, 4)), 6)
    0.8
    """
    want, count = np.broadcast_arrays(np.asarray(tokens, dtype=float), np.asarray(g, dtype=float))
    if not np.all((want >= 1) & (want <= count + 1)):
        raise SpecError("must lie between 1 and one more than the draft tokens", field="accepted length", value=tokens)
    low, high = np.zeros(want.shape), np.ones(want.shape)
    for _ in range(HALVINGS):
        middle = (low + high) / 2
        below = np.asarray(expected_tokens(middle, count)) < want
        low, high = np.where(below, middle, low), np.where(below, high, middle)
    found: Numeric = (low + high) / 2
    return found
