"""Results of `llama-bench -o json` and `-o csv`: one test of prompts, of decodes, or of both, per row. Knows no file.

Field names are those of llama.cpp tools/llama-bench/llama-bench.cpp.
"""

from __future__ import annotations

import re

from inferplan.errors import SpecError
from inferplan.readers.benchmarks_fields import Fields, Rows, row_of

FORMAT = re.compile(r"(?:^|\s)((?:I?Q\d|TQ\d|BF16|F16|F32|MXFP4)[A-Z0-9_]*)(?:\s*-\s*(Small|Medium|Large))?(?:\s|$)")


def weights_of(model_type: str) -> str | None:
    """The weight format that a model's type ends in, as llama.cpp prints it.

    >>> weights_of("llama 8B Q4_K - Medium"), weights_of("qwen3 0.6B F16"), weights_of("llama ?B")
    ('q4_k_m', 'f16', None)
    """
    found = FORMAT.search(model_type)
    return None if found is None else (found[1] + (f"_{found[2][0]}" if found[2] else "")).lower()


def of_llama_bench(found: Fields) -> Rows:
    """A test: `n_prompt` alone is prefill, `n_gen` alone decode of one sequence, both together are tokens of both over their time.

    Tests stand at `n_depth` tokens that are there already. Decode is taken at the middle of its run.
    """
    prompt, made, depth = found.number("n_prompt") or 0, found.number("n_gen") or 0, found.number("n_depth") or 0
    rate = found.needed("avg_ts")
    if not rate:
        raise SpecError("must be above 0", file=found.file, field=found.at("avg_ts"), value=rate)
    if not prompt and not made:
        raise SpecError("tests neither a prompt nor a decode", file=found.file, field=found.place or "n_prompt")
    devices = _devices(found)
    common = row_of(
        case=_name(prompt, made, depth), model=_model(found), gpu=devices[0] if devices else None, engine="llama.cpp",
        pp=len(devices) if len(devices) > 1 else None, gpu_layers=_layers(found) or None, host=found.text("cpu_info"),
        weights=weights_of(found.text("model_type") or ""),
        kv=found.text("type_k") if found.text("type_k") == found.text("type_v") else None, batch=1, statistic="mean",
    )  # fmt: skip
    if prompt and made:
        cells = row_of(input_tokens=depth + prompt, cached_tokens=depth or None, output_tokens=made, e2e_s=(prompt + made) / rate)
        return [{**common, **cells}]
    if prompt:
        return [{**common, **row_of(input_tokens=depth + prompt, cached_tokens=depth or None, prefill_tokens_per_s=rate)}]
    return [{**common, **row_of(context=max(1, round(depth + (made + 1) / 2)), decode_tokens_per_s=rate)}]


def _name(prompt: float, made: float, depth: float) -> str:
    """The test as llama-bench's own tables call it.

    >>> _name(512, 0, 0), _name(0, 128, 4096), _name(512, 128, 0)
    ('pp512', 'tg128 @ d4096', 'pp512+tg128')
    """
    parts = [f"{word}{count:.0f}" for word, count in (("pp", prompt), ("tg", made)) if count]
    return "+".join(parts) + (f" @ d{depth:.0f}" if depth else "")


def _model(found: Fields) -> str | None:
    """The name of the model's file without its folder, which says more than the type: `Qwen3-8B-Q4_K_M.gguf`."""
    path = found.text("model_filename")
    return None if path is None else re.split(r"[/\\]", path)[-1] or None


def _layers(found: Fields) -> float | None:
    """Layers on the devices; None for all, which newer releases write as -1."""
    return None if str(found.own.get("n_gpu_layers", "")).startswith("-") else found.number("n_gpu_layers")


def _devices(found: Fields) -> list[str]:
    """The devices that compute, or the processor where no layer is on one."""
    names = (found.text("gpu_info") or "") if _layers(found) != 0 else ""
    return [name.strip() for name in (names or found.text("cpu_info") or "").split(",") if name.strip()]
