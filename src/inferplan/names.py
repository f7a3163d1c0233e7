"""Names to specs, for notebooks: a model, a part, a precision by what people call it. Knows no file format and no number."""

from __future__ import annotations

from inferplan.readers.opening import open_model
from inferplan.specs.hardware import Accelerator
from inferplan.specs.model import Model
from inferplan.specs.precision import Precision


def model(text: str) -> Model:
    """The model that a catalog name, a path or a Hub id means.

    >>> model("deepseek-v3").params
    671026404352
    """
    return open_model(text).model


def hardware(text: str) -> Accelerator:
    """The accelerator that a name, an alias or a path means.

    >>> hardware("h100").bandwidth_bytes_per_s
    3350000000000.0
    """
    return Accelerator.find(text)


def precision(text: str, kv: str | None = None) -> Precision:
    """The precision that a text means, with another KV format where `kv` names one.

    >>> precision("fp8", kv="int8").summary
    'fp8 weights and matmuls, int8-kv KV'
    """
    return Precision.named(text, kv)
