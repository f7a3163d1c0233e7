"""Every headline number opened: text and numbers agree at every node, and every leaf says where it comes from."""

import ast
import json
import math
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from types import CodeType

import numpy as np
import pytest

from inferplan import deployment, names
from inferplan.cli.app import main
from inferplan.deployment import Estimate
from inferplan.errors import NotFound, Unsupported
from inferplan.explain import QUANTITIES, Node, explain
from inferplan.explain.node import SHOWN, WORDS, derived, leaf, total, word
from inferplan.report.explain import branch, number_text
from inferplan.specs.parallel import Parallel

KINDS = ("given: ", "counted: ", "assumed: ", "fitted: ", "calibration ", "engine ", "format ", "link ", "price list: ", "NVIDIA ", "AMD ")

CASES = {
    "dense": ("llama-2-7b", "a100", "fp16", {}, {"batch": 8}),
    "dense-fp8-on-a100": ("llama-3.1-8b", "a100", "fp8", {}, {"batch": 32, "cached": 100}),
    "dense-tp": ("llama-3.1-70b", "h100", "fp8", {"tp": 4}, {"batch": 16, "max_model_len": 32768, "utilization": 0.85}),
    "dense-pp": ("llama-3.1-70b", "mi300x", "bf16", {"tp": 2, "pp": 4}, {"batch": 3}),
    "dense-gguf": ("llama-3.1-8b", "h100", "q4_k_m", {}, {"engine": "llama.cpp"}),
    "dense-more-ranks-than-kv-heads": ("qwen2.5-7b", "h100", "bf16", {"tp": 8, "dcp": 2}, {"batch": 4}),
    "two-nodes": ("llama-3.1-405b", "h100", "bf16", {"tp": 16}, {"batch": 8}),
    "moe": ("mixtral-8x7b", "h100", "awq", {}, {"batch": 64, "engine": "sglang"}),
    "moe-ep": ("qwen3-30b-a3b", "h100", "bf16", {"tp": 2, "dp": 4, "ep": 8}, {"batch": 256}),
    "moe-mxfp4": ("gpt-oss-120b", "h100", "mxfp4", {"tp": 2}, {"batch": 5}),
    "mla": ("deepseek-v3", "mi300x", "fp8", {"tp": 8}, {"batch": 128, "input_tokens": 8000}),
    "mla-sparse": ("deepseek-v3.2", "mi300x", "fp8", {"tp": 8, "dp": 2, "ep": 16}, {"input_tokens": 20000}),
    "window": ("gemma-3-27b", "h100", "bf16", {"tp": 2}, {"batch": 4, "input_tokens": 5000, "engine": "sglang"}),
    "window-cells": ("gemma-3-27b", "h100", "bf16", {}, {"batch": 4, "engine": "llama.cpp"}),
    "chunks": ("llama-4-scout", "h100", "bf16", {"tp": 8}, {"input_tokens": 20000}),
    "hybrid": ("nemotron-h-8b", "a100", "bf16", {"tp": 2}, {"batch": 16}),
    "hybrid-delta": ("qwen3-next-80b-a3b", "h100", "fp8", {"tp": 4}, {"batch": 16, "engine": "tensorrt-llm"}),
    "states-alone": ("mamba-2.8b", "a100", "bf16", {}, {"batch": 4}),
    "encoder-decoder": ("whisper-large-v3", "a100", "bf16", {}, {"batch": 4, "efficiency": "ideal"}),
    "context-parallel": ("llama-3.1-70b", "h100", "fp8", {"tp": 4, "cp": 2, "dcp": 2}, {"batch": 2, "input_tokens": 3000}),
    "latent-context-parallel": ("deepseek-v2-lite", "h100", "bf16", {"cp": 2}, {"batch": 2, "input_tokens": 9000, "overlap": 0.5}),
    "pipeline-of-chunks": ("llama-3.1-70b", "h100", "fp8", {"pp": 4}, {"batch": 24, "input_tokens": 3000, "cached": 100}),
    "host-computes": ("llama-3.1-70b", "rtx-4090", "q4_k_m", {}, {"engine": "llama.cpp", "gpu_layers": 40, "host": "ryzen-9950x"}),
    "host-experts": ("deepseek-v2-lite", "rtx-4090", "q4_k_m", {}, {"engine": "llama.cpp", "cpu_experts": 9, "host": "ryzen-9950x"}),
    "streamed": ("llama-3.1-8b", "rtx-4090", "bf16", {}, {"cpu_offload_bytes": 5.5e9, "batch": 3}),
    "uneven-experts": ("qwen3-30b-a3b", "h100", "bf16", {"dp": 4, "ep": 4}, {"batch": 64, "expert_skew": 0.8, "expert_imbalance": 1.3}),
    "images": ("qwen2.5-vl-7b", "h100", "bf16", {}, {"batch": 2, "images": 3, "image_patches": 4096, "context": 9000}),
    "compressed": ("deepseek-v4-flash", "mi300x", "fp8", {"tp": 4}, {"batch": 4}),
}


def case(name: str) -> Estimate:
    model, gpu, precision, split, load = CASES[name]
    load = load | {"host": names.hardware(load["host"])} if "host" in load else load
    return deployment.estimate(names.model(model), names.hardware(gpu), names.precision(precision), parallel=Parallel(**split), **load)


@dataclass(frozen=True)
class Opened:
    """An estimate with the trees of all its numbers, built once."""

    estimate: Estimate
    trees: dict[str, Node]


SLOW = {"compressed", "mla-sparse", "hybrid-delta", "dense-pp", "window-cells"}


@pytest.fixture(scope="module", params=[pytest.param(c, marks=pytest.mark.slow if c in SLOW else ()) for c in CASES])
def opened(request: pytest.FixtureRequest) -> Opened:
    e = case(request.param)
    return Opened(e, dict(trees(e)))


def mean(value: object) -> float:
    return float(np.mean(np.asarray(value)))


def headline(e: Estimate) -> dict[str, float | None]:
    """The same numbers by the estimate's own way."""
    rate = e.output_tokens_per_s
    return {
        "tpot": e.tpot_s, "ttft": e.ttft_s, "prefill": e.prefill_s, "front_end": e.prompt_front_end_s, "e2e": e.e2e_s,
        "floor_tpot": e.floor_tpot_s, "floor_ttft": e.floor_ttft_s,
        "decode_tokens_per_s": e.decode_tokens_per_s, "output_tokens_per_s": rate, "kv_bytes": e.kv_bytes_per_token,
        "sequence_bytes": e.sequence_bytes, "cache_bytes": e.sequence_bytes * e.load.batch, "weights": e.weight_bytes,
        "params": e.counts.total, "active_params": e.counts.active, "bytes_per_token": e.bytes_per_token,
        "flops_per_token": mean(e.decode.flops) / e.load.batch, "max_batch": e.max_sequences,
        "kv_cache_tokens": mean(e.capacity.kv_cache_tokens), "intensity": mean(e.decode.intensity),
        "ridge": e.hardware.ridge(max(e.decode.ops, key=lambda op: mean(op.flops)).rate),
        "mfu": mean(e.decode.mfu), "mbu": mean(e.decode.mbu),
        "usd_per_million_tokens": deployment.usd_per_million_tokens(e, rate),
        "joules_per_million_tokens": deployment.joules_per_million_tokens(e, rate),
    }  # fmt: skip


def trees(e: Estimate) -> Iterator[tuple[str, Node]]:
    for quantity in QUANTITIES:
        try:
            yield quantity, explain(quantity, e)
        except Unsupported:
            assert headline(e)[quantity] is None


def test_roots_are_the_numbers_on_the_screen(opened: Opened) -> None:
    expected = headline(opened.estimate)
    assert set(expected) == set(QUANTITIES)
    for quantity, node in opened.trees.items():
        assert node.value == pytest.approx(expected[quantity], rel=1e-9), quantity


@cache
def compiled(equation: str) -> tuple[CodeType, frozenset[str]]:
    """An equation to evaluate, and the names in it."""
    found = ast.parse(equation, mode="eval")
    return compile(found, "<equation>", "eval"), frozenset({n.id for n in ast.walk(found) if isinstance(n, ast.Name)} - set(WORDS))


def check(node: Node) -> str:
    """What is wrong with a node, or ''."""
    if not node.equation:
        return "" if not node.children and node.source.startswith(KINDS) else f"no source: {node.source}"
    code, wanted = compiled(node.equation)
    values = {child.label: child.value for child in node.children}
    if wanted != values.keys() or len(values) != len(node.children) or node.source:
        return f"names differ: {node.equation} of {list(values)}"
    if len(values) > SHOWN + 1 and node.equation == " + ".join(values):
        return "longer than a screen"
    again = eval(code, {"__builtins__": {}, **WORDS, **values})  # noqa: S307 - the text under test
    if isinstance(node.value, float):
        same = again == node.value or math.isclose(again, node.value, rel_tol=1e-9)
    else:
        same = np.allclose(again, node.value, rtol=1e-9, atol=0)
    return "" if same else f"{node.equation} is {again}, not {node.value}"


def test_every_equation_makes_its_value_and_every_leaf_has_a_source(opened: Opened) -> None:
    for quantity, root in opened.trees.items():
        wrong = [(quantity, node.label, found) for node in root.walk() if (found := check(node))]
        assert not wrong, wrong[:5]


def leaves(node: Node, label: str) -> list[Node]:
    return [n for n in node.walk() if n.label == label and not n.children]


def test_kv_bytes_is_the_usual_formula() -> None:
    e = case("dense")
    node = explain("cache_bytes", e)
    assert node.equation == "2 * batch * length * layers * kv_heads * head_dim * bytes_per_element"
    assert {c.label: c.value for c in node.children if not c.children} == {
        "batch": 8, "layers": 32, "kv_heads": 32, "head_dim": 128, "bytes_per_element": 2,
    }  # fmt: skip
    assert node.value == 2 * 8 * 1280 * 32 * 32 * 128 * 2
    assert explain("kv_bytes", e).value == 524_288


def test_windows_and_states_stand_apart() -> None:
    window = explain("sequence_bytes", case("window"))
    assert {c.label for c in window.children} == {"sliding", "full"}
    kept = next(n for n in window.walk() if n.label == "kept")
    assert (kept.equation, kept.value) == ("minimum(length, window)", 1024)
    assert any(c.label.endswith("_states") for c in explain("sequence_bytes", case("hybrid")).children)


def test_a_latent_is_cached_once() -> None:
    node = explain("kv_bytes", case("mla"))
    found = {(n.label, n.value) for n in node.walk() if n.label in ("latent", "rope", "layers")}
    assert found == {("latent", 512), ("rope", 64), ("layers", 3), ("layers", 58)}


def test_the_floor_of_the_rule_of_thumb() -> None:
    node = explain("floor_tpot", case("dense"))
    floor = node.children[0]
    assert floor.equation == "maximum(memory_s, compute_s)"
    memory = floor.children[0]
    assert memory.equation == "moved_bytes / bandwidth"
    assert memory.children[1].value == names.hardware("a100").bandwidth_bytes_per_s
    assert memory.children[1].source.startswith("NVIDIA A100 SXM4 80GB: NVIDIA A100 data sheet (published, high confidence)")


def test_fp8_on_a100_is_computed_in_bf16() -> None:
    e = case("dense-fp8-on-a100")
    peaks = {n.value for n in leaves(explain("tpot", e), "peak")}
    assert peaks == {e.hardware.peak_flops_per_s("bf16")}
    assert {n.value for n in leaves(explain("weights", e), "bits")} >= {8.0, 16.0}


def test_efficiencies_name_their_calibration() -> None:
    node = explain("tpot", case("dense-tp"))
    sources = {n.source for n in leaves(node, "eff_bandwidth")}
    assert any(s.startswith("calibration default: measured (matmul.fp8") for s in sources)
    assert all(s.startswith("calibration default: ") for s in sources)
    ideal = explain("tpot", case("encoder-decoder"))
    assert {n.value for n in leaves(ideal, "eff_bandwidth")} == {1.0}


def test_what_was_given_is_said_to_be() -> None:
    node = explain("max_batch", case("dense-tp"))
    assert leaves(node, "utilization")[0].source == "given: --utilization"
    assert leaves(node, "length")[0].value == 32768
    own = leaves(explain("max_batch", case("dense")), "utilization")[0]
    assert own.source.startswith("engine vLLM")


def test_distinct_experts_are_counted_by_the_formula() -> None:
    node = explain("bytes_per_token", case("moe"))
    distinct = next(n for n in node.walk() if n.label == "distinct_experts")
    assert distinct.equation == "experts * (1 - (1 - top_k / experts) ** tokens)"
    assert distinct.value == pytest.approx(8, rel=1e-6)


def test_sums_show_the_largest_and_one_child_of_others() -> None:
    terms = [leaf(f"t{i}", float(i), "s", "given: --t") for i in range(20)]
    node = total("sum_s", "s", terms)
    assert [c.label for c in node.children] == ["t19", "t18", "t17", "t16", "t15", "t14", "others_13"]
    assert node.value == sum(range(20))
    assert sorted(n.label for n in node.walk() if not n.children) == sorted(t.label for t in terms if t.value)
    assert total("none", "s", []).source


def test_labels_are_words_of_equations() -> None:
    assert [word(x) for x in ("a b.c", "2x", "lambda", "mean", "[red]", "")] == ["a_b_c", "n2x", "lambda_", "mean_", "red", "n"]
    both = total("s", "B", [leaf("a", 1, "B", "given: --a"), leaf("a", 2, "B", "given: --a")])
    assert (both.equation, both.value) == ("a + a_2", 3)


def test_unknown_words_and_missing_numbers() -> None:
    e = case("dense")
    with pytest.raises(NotFound, match="no quantity called 'tpto'; near it: .*tpot"):
        explain("tpto", e)
    assert explain("tpot_s", e).value == explain("TPOT", e).value
    unpriced = deployment.estimate(names.model("7b"), e.hardware.model_copy(update={"name": "mine", "power": None}), e.precision)
    for quantity in ("usd_per_million_tokens", "joules_per_million_tokens"):
        with pytest.raises(Unsupported):
            explain(quantity, unpriced)


def test_numbers_as_text() -> None:
    assert number_text(7e9 + 0.5, "") == "7,000,000,000"
    assert number_text(64.0, "requests") == "64 requests"
    assert number_text(float("inf"), "blocks") == "inf blocks"


def test_a_cut_branch_says_how_much_it_hides() -> None:
    node = derived("a", "2 * b", "B", derived("b", "c + 1", "B", leaf("c", 3, "B", "given: --c")))
    assert branch(node, 1)["children"][0] == {"label": "b", "value": 4.0, "unit": "B", "equation": "c + 1", "hidden": 1}
    assert branch(node)["children"][0]["children"][0]["source"] == "given: --c"


ASK = ("-m", "llama-3.1-8b", "-g", "h100", "-d", "fp8")


def run(capsys: pytest.CaptureFixture[str], *args: str) -> str:
    assert main(["explain", *args]) == 0
    out, err = capsys.readouterr()
    assert not err
    return out


@pytest.mark.parametrize(("quantity", "width"), [(q, 80) for q in QUANTITIES] + [("tpot", 50), ("max_batch", 60)])
def test_the_screen_keeps_to_its_width(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, quantity: str, width: int
) -> None:
    monkeypatch.setenv("COLUMNS", str(width))
    out = run(capsys, quantity, *ASK, "--tp", "2", "--depth", "2")
    assert max(map(len, out.splitlines())) <= width
    assert "NVIDIA H100" in out


def test_depth(capsys: pytest.CaptureFixture[str]) -> None:
    sizes = [len(run(capsys, "tpot", *ASK, "--depth", str(depth)).splitlines()) for depth in (0, 1, 3, 5)]
    assert sizes == sorted(set(sizes))
    assert main(["explain", "tpot", *ASK, "--depth", "-1"]) == 2


def test_json_holds_the_whole_tree(capsys: pytest.CaptureFixture[str]) -> None:
    found = json.loads(run(capsys, "floor_tpot", *ASK, "--json"))
    assert found["schema"] == "inferplan/explain/1"
    assert (found["model"], found["hardware"], found["quantity"]) == ("llama-3.1-8b", "h100-sxm5-80gb", "floor_tpot")
    e = deployment.estimate(names.model("llama-3.1-8b"), names.hardware("h100"), names.precision("fp8"))
    assert found["tree"]["value"] == e.floor_tpot_s
    open_nodes, ends = [found["tree"]], 0
    while open_nodes:
        node = open_nodes.pop()
        children = node.get("children", [])
        assert children or node["source"]
        ends += not children
        open_nodes += children
    assert ends > 100


def test_names_of_a_users_model_are_no_markup(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    text = (
        "name: mine\ntitle: '[red]Mine[/red]'\nhidden: 64\nvocab: 100\nlayers: a*2\ncontext: 4096\n"
        "blocks: {a: {mixer: {kind: attention, heads: 4, kv_heads: 2, head_dim: 16}, ffn: {kind: dense, width: 128}}}\n"
    )
    (tmp_path / "mine.yaml").write_text(text)
    out = run(capsys, "params", "-m", str(tmp_path / "mine.yaml"), "-g", "a100", "--depth", "9")
    assert out.count("[red]Mine[/red]") > 5


def test_a_wrong_word_is_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["explain", "tpto", *ASK]) == 2
    out, err = capsys.readouterr()
    assert not out
    assert err.startswith("inferplan: no quantity called 'tpto'; near it: ")
    assert err.count("\n") == 1
