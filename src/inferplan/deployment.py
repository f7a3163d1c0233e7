"""One deployment answered: memory, bytes per token and the ideal roofline of prefill and decode on one device. Knows no screen."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from inferplan.engine.cache_bytes import kv_bytes_per_token, kv_bytes_per_token_unbounded, sequence_bytes, state_bytes_per_sequence
from inferplan.engine.step import Step, decode, prefill
from inferplan.errors import SpecError
from inferplan.memory.fit import Fit, fit
from inferplan.memory.weights import weight_bytes_by_part
from inferplan.specs.counts import Counts, counts
from inferplan.specs.hardware import Accelerator
from inferplan.specs.model import Model
from inferplan.specs.precision import Precision

MAX_TOKENS = 10**8
MAX_BATCH = 10**6


@dataclass(frozen=True, slots=True)
class Estimate:
    """What one device does with one model and load, at its physical floor: efficiency 1, no overhead."""

    model: Model
    hardware: Accelerator
    precision: Precision
    input_tokens: int
    output_tokens: int
    batch: int
    counts: Counts
    fit: Fit
    prefill: Step
    decode: Step
    weight_parts: dict[str, float]

    @property
    def ttft_s(self) -> float:
        """The floor of the time to first token: the prefill of the whole batch."""
        return float(np.asarray(self.prefill.floor_s))

    @property
    def tpot_s(self) -> float:
        """The floor of the mean gap between output tokens, over the contexts that the output runs through."""
        return float(np.mean(self.decode.floor_s))

    @property
    def e2e_s(self) -> float:
        """The floor of a whole request: first token, then the gaps."""
        return self.ttft_s + (self.output_tokens - 1) * self.tpot_s

    @property
    def decode_tokens_per_s(self) -> float:
        """Tokens per second of one sequence while it decodes."""
        return 1 / self.tpot_s

    @property
    def kv_bytes_per_token(self) -> float:
        """Bytes that one more token adds, windows not yet full."""
        return float(kv_bytes_per_token(self.model, self.precision))

    @property
    def kv_bytes_per_token_unbounded(self) -> float:
        """The same without windowed layers."""
        return float(kv_bytes_per_token_unbounded(self.model, self.precision))

    @property
    def state_bytes_per_sequence(self) -> float:
        """Constant recurrent states of one sequence."""
        return state_bytes_per_sequence(self.model, self.precision)

    @property
    def bytes_per_token(self) -> float:
        """Bytes one decode step moves for each token it makes."""
        return float(np.mean(self.decode.bytes)) / self.batch

    @property
    def computed_in(self) -> dict[str, str]:
        """For each number type the precision asks for, the one that this part multiplies in."""
        rates = sorted({op.rate for op in self.decode.ops if op.rate not in ("none", "fp32")})
        return {rate: self.hardware.computed_in(rate) for rate in rates}


def estimate(
    model: Model, hardware: Accelerator, precision: Precision, *, input_tokens: int = 1024, output_tokens: int = 256, batch: int = 1
) -> Estimate:
    """The estimate of one model on one part at one load.

    Raises SpecError for a load outside its range, Unsupported where the part lacks a number that is needed.
    """
    for name, value, most in (
        ("input_tokens", input_tokens, MAX_TOKENS),
        ("output_tokens", output_tokens, MAX_TOKENS),
        ("batch", batch, MAX_BATCH),
    ):
        if not 1 <= value <= most:
            raise SpecError(f"must lie between 1 and {most:,}", field=name, value=value)
    contexts = np.unique(np.linspace(input_tokens + 1, input_tokens + output_tokens, min(output_tokens, 64)).round())
    total = input_tokens + output_tokens
    return Estimate(
        model=model, hardware=hardware, precision=precision, input_tokens=input_tokens, output_tokens=output_tokens, batch=batch,
        counts=counts(model), fit=fit(model, hardware, precision, tokens=total, batch=batch),
        prefill=prefill(model, hardware, precision, input_tokens=input_tokens, batch=batch),
        decode=decode(model, hardware, precision, context=contexts, batch=batch), weight_parts=weight_bytes_by_part(model, precision),
    )  # fmt: skip


__all__ = ["Estimate", "estimate", "sequence_bytes"]
