"""Factors fitted to measured times: damped least squares on relative errors, held by priors. Knows no file and no screen.

A row's residual is the logarithm of predicted over measured in units of SPREAD, beyond which it counts linearly; a factor's is its own
logarithm over its prior spread. What the rows do not tell apart therefore stays near the base, and is reported as not identified.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from inferplan.calibrate.banded import BANDED
from inferplan.calibrate.cases import Case
from inferplan.calibrate.deployed import Deployment
from inferplan.calibrate.loads import Batch, load_of
from inferplan.calibrate.parameters import Kernel, Parameter, kernels_of, parameters_of, scaled
from inferplan.calibrate.predict import Predictor
from inferplan.calibrate.times import TIMES
from inferplan.deployment import Estimate
from inferplan.errors import InferplanError, Unsupported
from inferplan.roofline.bands import Band
from inferplan.roofline.efficiency import Efficiency
from inferplan.specs.hardware import Accelerator

SPREAD = 0.1  # relative error of a row that counts as one, as in the fits that are shipped
STEP = 0.05  # of a factor's logarithm, over which slopes are taken: steps may jump where a kernel or an algorithm changes
ROUNDS = 4  # predictions are nearly linear in the logarithms, so that two or three settle them
SETTLED = 0.01  # a move of all factors below which nothing more is to be had
IDENTIFIED = 0.5
LEAST_FOR_BAND = 10  # rows; of fewer, no tenth lies beyond an end
ENDS = (0.1, 0.9)
Progress = Callable[[int, int], None]


@dataclass(frozen=True, slots=True)
class Factor:
    """One factor as fitted. `spread` is the standard deviation of its logarithm after the rows; the parameter's own is that before."""

    parameter: Parameter
    factor: float
    spread: float

    @property
    def identified(self) -> bool:
        """Whether the rows say twice as much of it as was known before."""
        return self.spread <= IDENTIFIED * self.parameter.spread


@dataclass(frozen=True, slots=True, eq=False)
class Calibrated:
    """A calibration fitted to rows.

    before, after
        signed relative errors of the rows used, under the base and under the fit.
    unseen
        logarithms of measured over predicted, each as it were without its own row, to first order.
    refused
        reasons of rows that could not be predicted.
    """

    efficiency: Efficiency
    kernels: tuple[Kernel, ...]
    fitted: tuple[Factor, ...]
    cases: tuple[Case, ...]
    before: np.ndarray
    after: np.ndarray
    unseen: np.ndarray
    refused: tuple[str, ...]
    partial: bool = False

    def bands(self) -> dict[str, dict[str, Band]]:
        """Bands of TPOT and TTFT by `engine on part`, where ten rows or more speak of both."""
        found: dict[str, dict[str, Band]] = {}
        for quantity in ("tpot", "ttft"):
            keys = [_place(case) if BANDED.get(case.quantity) == quantity else "" for case in self.cases]
            for place in sorted({key for key in keys if key}):
                own = self.unseen[[key == place for key in keys]]
                if own.size >= LEAST_FOR_BAND:
                    found.setdefault(quantity, {})[place] = _band(own)
        return found


def _band(logarithms: np.ndarray) -> Band:
    """Percentiles of so few rows, moved outwards as the spread of a small sample is too small."""
    low, high = np.quantile(logarithms, ENDS)
    middle, half = (low + high) / 2, (high - low) / 2 * (logarithms.size + 1) / (logarithms.size - 1)
    return Band(low=round(float(np.exp(middle - half)), 3), high=round(float(np.exp(middle + half)), 3), rows=int(logarithms.size))


def _place(case: Case) -> str:
    deployment = Deployment.of(case)
    return f"{deployment.engine} on {Accelerator.find(deployment.gpu).name}"


def calibrate(cases: Iterable[Case], base: Efficiency, *, progress: Progress | None = None) -> Calibrated:
    """The base calibration fitted to the times among cases; an interrupt keeps the best fit so far and marks it `partial`.

    Raises Unsupported where no row can be predicted.
    """
    usable, refused = _usable(cases, base)
    if not usable:
        raise Unsupported(f"no row of the case file has a time that can be predicted{': ' + refused[0] if refused else ''}")
    estimates = _estimates(usable, base)
    kernels = tuple(sorted({kernel for e in estimates for kernel in kernels_of(e)}))
    problem = _Problem(usable, base, kernels, parameters_of(estimates, base), progress)
    return problem.solved(refused)


def spread_over(cases: Sequence[Case], most: int) -> list[Case]:
    """At most so many cases, evenly spread over the file.

    >>> spread_over(list("abcdefgh"), 3)
    ['a', 'd', 'h']
    """
    if len(cases) <= most:
        return list(cases)
    return [cases[int(at)] for at in np.linspace(0, len(cases) - 1, most)]


def _usable(cases: Iterable[Case], base: Efficiency) -> tuple[list[Case], tuple[str, ...]]:
    predictor, found, refused = Predictor(base), [], []
    for case in cases:
        if case.quantity not in TIMES or case.value <= 0:
            continue
        try:
            predictor.predict(case)
        except InferplanError as e:
            refused.append(str(e))
        else:
            found.append(case)
    return found, tuple(refused)


def _estimates(cases: Sequence[Case], base: Efficiency) -> list[Estimate]:
    """An estimate of each distinct deployment."""
    seen: dict[Deployment, Case] = {}
    for case in cases:
        seen.setdefault(Deployment.of(case), case)
    return [deployment.estimator(case, base)(**_at(case)) for deployment, case in seen.items()]


def _at(case: Case) -> dict[str, Any]:
    load = load_of(case)
    context = load.context if isinstance(load, Batch) else None
    return {"input_tokens": load.input_tokens or context or 1024, "output_tokens": load.output_tokens or 1, "batch": 1}


@dataclass(slots=True, eq=False)
class _Problem:
    """The least squares of one fit."""

    cases: list[Case]
    base: Efficiency
    kernels: tuple[Kernel, ...]
    parameters: list[Parameter]
    progress: Progress | None
    done: int = 0

    @property
    def priors(self) -> np.ndarray:
        """Prior spreads of the factors' logarithms."""
        return np.array([p.spread for p in self.parameters])

    def efficiency(self, x: np.ndarray) -> Efficiency:
        """The calibration at logarithms of factors."""
        return scaled(self.base, self.kernels, dict(zip(self.parameters, np.exp(x), strict=True)))

    def misses(self, x: np.ndarray) -> np.ndarray:
        """Logarithms of predicted over measured."""
        predictor, found = Predictor(self.efficiency(x)), []
        for case in self.cases:
            found.append(np.log(predictor.predict(case).value / case.value))
            self.done += 1
            if self.progress:
                self.progress(self.done, self._total)
        return np.array(found)

    @property
    def _total(self) -> int:
        return len(self.cases) * (1 + ROUNDS * (len(self.parameters) + 1))

    def slope(self, x: np.ndarray, at: np.ndarray) -> np.ndarray:
        """How misses change with the factors' logarithms, shape (rows, factors)."""
        return np.array([(self.misses(x + STEP * unit) - at) / STEP for unit in np.eye(len(x))]).T

    def solved(self, refused: tuple[str, ...]) -> Calibrated:
        """The fit, by rounds of least squares with rows far off weighed down."""
        x, slope = np.zeros(len(self.parameters)), np.zeros((len(self.cases), len(self.parameters)))
        before = at = self.misses(x)
        best, partial = (x, at), False
        try:
            for _ in range(ROUNDS):
                slope = self.slope(x, at)
                move = self._move(x, at, slope)
                x = x + move
                at = self.misses(x)
                if self._cost(x, at) < self._cost(*best):
                    best = x, at
                if np.abs(move).max() < SETTLED:
                    break
        except KeyboardInterrupt:
            partial = True
        return self._answer(*best, before, slope, refused, partial)

    def _weights(self, at: np.ndarray) -> np.ndarray:
        """Weights of rows: 1 / SPREAD within it, falling beyond (the square root of a pseudo-Huber loss's slope)."""
        found: np.ndarray = (1 + (at / SPREAD) ** 2) ** -0.25 / SPREAD
        return found

    def _cost(self, x: np.ndarray, at: np.ndarray) -> float:
        return float((2 * (np.sqrt(1 + (at / SPREAD) ** 2) - 1)).sum() + ((x / self.priors) ** 2).sum())

    def _normal(self, at: np.ndarray, slope: np.ndarray) -> np.ndarray:
        weighed = self._weights(at)[:, None] * slope
        found: np.ndarray = weighed.T @ weighed + np.diag(self.priors**-2)
        return found

    def _move(self, x: np.ndarray, at: np.ndarray, slope: np.ndarray) -> np.ndarray:
        weights = self._weights(at) ** 2
        move = np.linalg.solve(self._normal(at, slope), -(slope.T @ (weights * at)) - x / self.priors**2)
        found: np.ndarray = np.clip(move, -1.0, 1.0)
        return found

    def _answer(
        self, x: np.ndarray, at: np.ndarray, before: np.ndarray, slope: np.ndarray, refused: tuple[str, ...], partial: bool
    ) -> Calibrated:
        cover = np.linalg.inv(self._normal(at, slope))
        pull = np.einsum("ij,jk,ik->i", slope, cover, slope) * self._weights(at) ** 2
        spread = np.sqrt(np.diag(cover))
        fitted = tuple(Factor(p, float(np.exp(value)), float(s)) for p, value, s in zip(self.parameters, x, spread, strict=True))
        return Calibrated(
            self.efficiency(x), self.kernels, fitted, tuple(self.cases), np.expm1(before), np.expm1(at),
            -at / np.maximum(1 - pull, 0.05), refused, partial,
        )  # fmt: skip
