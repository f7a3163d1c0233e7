"""Damped least squares for the scripts that fit calibrations. Knows no measurement and no constant."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

STEP = 1e-4


def levenberg_marquardt(
    residuals: Callable[[np.ndarray], np.ndarray],
    x: np.ndarray,
    slopes: Callable[[np.ndarray, np.ndarray], np.ndarray] | None = None,
    *,
    rounds: int = 200,
    least_move: float = 1e-5,
) -> np.ndarray:
    """The point near `x` at which the squares of the residuals are least; slopes by differences where none are given."""
    found = slopes or (lambda x, r: np.array([(residuals(x + STEP * unit) - r) / STEP for unit in np.eye(len(x))]).T)
    damping, r, slope = 1e-2, residuals(x), None
    for _ in range(rounds):
        slope = found(x, r) if slope is None else slope
        ahead = slope.T @ slope
        move = np.linalg.solve(ahead + damping * np.diag(np.diag(ahead)), -slope.T @ r)
        tried = residuals(x + move)
        if tried @ tried < r @ r:
            x, done, r, damping, slope = x + move, float(np.abs(move).max()) < least_move, tried, damping / 3, None
            if done:
                break
        else:
            damping *= 4
            if damping > 1e8:
                break
    return x


def soft(miss: np.ndarray) -> np.ndarray:
    """Residuals whose squares grow like squares below 1 and linearly above, so that outliers count little."""
    return np.asarray(np.sign(miss) * np.sqrt(2 * (np.sqrt(1 + miss**2) - 1)))
