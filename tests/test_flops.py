"""FLOPs of one pass against an independent counter of matrix products on instantiated tiny models, and against hand counts.

The counter's conventions (full rectangle, head on every position, latent expanded, padded convolutions) are options of the
count. Scans of recurrent layers are bound to an implementation and are not compared; their projections are.
"""

import csv
import json
from collections import Counter
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from inferplan.engine.convention import MATRIX_COUNTER
from inferplan.engine.operators import operators
from inferplan.engine.segment import Segment
from inferplan.ops.attention import causal_pairs, chunk_pairs, window_pairs
from inferplan.readers.huggingface.config import read_config
from inferplan.specs.precision import Precision

DATA = Path(__file__).parent / "data"
TINY = json.loads((DATA / "tiny_models.json").read_text())
ROWS = list(csv.DictReader((DATA / "flops.csv").read_text().splitlines()))
COLUMN = {
    "attention": "attn_proj",
    "indexer": "indexer_compressor",
    "mlp": "mlp",
    "experts": "experts",
    "shared_expert": "shared_expert",
    "router": "router",
    "recurrent": "ssm_linear",
    "mlp_aux": "mlp_aux",
    "other": "mlp_aux",
    "head": "lm_head",
    "conv_frontend": "conv_frontend",
}
SCANS = {
    "mamba1",
    "mamba2",
    "jamba-hybrid",
    "falconh1-parallel-hybrid",
    "minimax-lightning-moe",
    "qwen35-gdn-dense",
    "qwen3next-gdn-moe",
    "lfm2-conv",
}
EVERY_EXPERT = {"llama4-chunked-moe"}
ENCODER_TOKENS = {"t5-encdec": 20}
BF16 = Precision.named("bf16")


def counted(row: dict[str, str]) -> Counter[str]:
    name = row["config"]
    model = read_config(TINY[name], name=name)
    convention = replace(MATRIX_COUNTER, every_expert=name in EVERY_EXPERT)
    segment = Segment(int(row["batch"]), int(row["q_len"]), int(row["context"]), memory=ENCODER_TOKENS.get(name, 0))
    found: Counter[str] = Counter()
    for op in operators(model, BF16, [segment], convention):
        if op.kind.startswith("attention"):
            found["attn_scores_values"] += int(op.flops)
        elif op.part in COLUMN:
            found[COLUMN[op.part]] += int(op.flops)
        else:
            assert float(op.flops) == 0, op
    return found


@pytest.mark.parametrize("row", ROWS, ids=lambda r: f"{r['config']}-{r['phase']}-{r['batch']}x{r['q_len']}+{r['context']}")
def test_matrix_products_are_exact(row: dict[str, str]) -> None:
    found = counted(row)
    for column in set(COLUMN.values()) | {"attn_scores_values"}:
        if column == "ssm_linear" and row["config"] in SCANS:
            continue
        assert found[column] == int(row[column]), column


@pytest.mark.parametrize(
    "row", [r for r in ROWS if r["config"] in {"mamba1", "jamba-hybrid"} and r["phase"] == "decode"], ids=lambda r: r["config"]
)
def test_recurrent_decode_is_exact_where_the_scan_is_elementwise(row: dict[str, str]) -> None:
    assert counted(row)["ssm_linear"] == int(row["ssm_linear"])


@pytest.mark.parametrize("row", [r for r in ROWS if r["config"] == "lfm2-conv" and r["phase"] == "prefill"], ids=lambda r: r["q_len"])
def test_short_convolution_prefill_is_exact(row: dict[str, str]) -> None:
    assert counted(row)["ssm_linear"] == int(row["ssm_linear"])


@pytest.mark.parametrize(("new", "past", "limit"), [(1, 0, 3), (5, 0, 3), (7, 2, 3), (4, 9, 16), (1, 31, 8), (16, 16, 8), (3, 5, 4)])
def test_pairs_equal_a_count_by_hand(new: int, past: int, limit: int) -> None:
    queries = range(past, past + new)
    assert causal_pairs(new, past) == sum(q + 1 for q in queries)
    assert window_pairs(new, past, limit) == sum(min(q + 1, limit) for q in queries)
    assert chunk_pairs(new, past, limit) == sum(q % limit + 1 for q in queries)


def dense() -> object:
    return read_config(TINY["llama-gqa"], name="tiny")


def total(model: object, *segments: Segment) -> float:
    return float(sum(np.asarray(op.flops) for op in operators(model, BF16, list(segments))))


@pytest.mark.parametrize("name", ["llama-gqa", "gemma3-5to1", "qwen3next-gdn-moe", "olmo3-3to1", "llama4-chunked-moe", "mamba2"])
def test_chunks_conserve_flops(name: str) -> None:
    model = read_config(TINY[name], name=name)
    whole = total(model, Segment(2, 96, 0, logits=1))
    parts = sum(total(model, Segment(2, 32, past, logits=float(past == 64))) for past in (0, 32, 64))
    assert parts == pytest.approx(whole, rel=1e-12)


def test_segments_that_share_a_pass_add_up() -> None:
    model = dense()
    one, two = Segment(3, 1, 50), Segment(1, 40, 0)
    assert total(model, one, two) == pytest.approx(total(model, one) + total(model, two), rel=1e-12)


@pytest.mark.parametrize("name", sorted(set(TINY) - {"t5-encdec", "whisper-encdec"}))
def test_vector_equals_scalar(name: str) -> None:
    model = read_config(TINY[name], name=name)
    batch, past = np.array([[1.0], [3.0], [17.0]]), np.array([0.0, 5.0, 100.0, 1000.0])
    grid = operators(model, BF16, [Segment(batch, 1, past)])
    flops = sum(np.broadcast_to(op.flops, (3, 4)) for op in grid)
    moved = sum(np.broadcast_to(op.weight_bytes + op.kv_bytes, (3, 4)) for op in grid)
    for i, b in enumerate(batch[:, 0]):
        for j, p in enumerate(past):
            one = operators(model, BF16, [Segment(float(b), 1, float(p))])
            assert flops[i, j] == pytest.approx(float(sum(np.asarray(op.flops) for op in one)), rel=1e-12)
            assert moved[i, j] == pytest.approx(float(sum(np.asarray(op.weight_bytes + op.kv_bytes) for op in one)), rel=1e-12)


def test_two_flops_per_parameter_and_token() -> None:
    model = dense()
    per_token = total(model, Segment(1, 1, 0)) - 2 * 4 * 4 * 32 * 1.0
    weights = sum(w.params for w in model.weights() if w.use == "matmul")
    assert per_token == pytest.approx(2 * weights, rel=1e-9)
