"""Server commands: flags against what releases document, words against a shell and Kubernetes, plans against the commands made of them."""

import csv
import json
import os
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

import inferplan as ip
from inferplan.cli.app import main
from inferplan.deployment import Estimate, estimate
from inferplan.errors import DoesNotFit, SpecError, Unsupported
from inferplan.launch.benchmark import launch_benchmark
from inferplan.launch.command import Command, launch_command, shell
from inferplan.launch.engines import TELLING
from inferplan.launch.manifest import dns_name, launch_manifest, manifest_text
from inferplan.launch.nodes import nodes
from inferplan.launch.plan import Draft
from inferplan.launch.table import Options, Variable, release_key, rows
from inferplan.launch.weights import hub_ids, weights
from inferplan.names import hardware, model, precision
from inferplan.report.launch import script
from inferplan.specs.engine import Engine
from inferplan.specs.parallel import Parallel

DATA = Path(__file__).parent / "data"
SNAPSHOTS = DATA / "launch_commands.txt"
LABEL = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?")
GGUF = "bartowski/Meta-Llama-3.1-8B-Instruct-GGUF"


def planned(name: str, part: str, fmt: str, kv: str | None = None, **told: Any) -> Estimate:
    ways = Parallel(**{k: told.pop(k) for k in ("tp", "pp", "dp", "ep", "dcp", "cp") if k in told})
    return estimate(model(name), hardware(part), precision(fmt, kv), parallel=ways, **told)


def documented() -> list[dict[str, str]]:
    """What the sources of releases list as options; read apart from the table that is under test."""
    return list(csv.DictReader((DATA / "documented_options.csv").read_text().splitlines()))


CASES: dict[str, tuple[tuple[str, ...], dict[str, Any], dict[str, Any]]] = {
    "vllm 0.4.3": (("llama-2-70b", "h100", "fp8"), {"engine": "vllm", "version": "0.4.3", "tp": 4, "batch": 16}, {}),
    "vllm 0.6.6 prefixes and n-grams": (
        ("llama-3.1-70b", "h100", "bf16", "fp8"), {"version": "0.6.6", "tp": 4, "cached": 512}, {"draft": Draft("ngram", 4)},
    ),
    "vllm 0.6.6 long": (("llama-3.1-8b", "h100", "bf16"), {"version": "0.6.6", "max_model_len": 32000}, {}),
    "vllm 0.9.2 under Ray": (("llama-3.1-405b", "h100", "bf16"), {"version": "0.9.2", "tp": 8, "pp": 2}, {}),
    "vllm 0.11.0 experts over nodes": (("deepseek-v3", "h200", "fp8-block"), {"version": "0.11.0", "dp": 16, "ep": 16}, {}),
    "vllm 0.12.0 nodes": (("llama-3.1-405b", "h100", "bf16"), {"version": "0.12.0", "tp": 8, "pp": 2}, {}),
    "vllm 0.16.0 a draft": (
        ("llama-3.1-70b", "h100", "bf16"), {"version": "0.16.0", "tp": 8},
        {"draft": Draft("model", 4, "meta-llama/Llama-3.2-1B-Instruct")},
    ),
    "vllm 0.33.0 offload": (
        ("llama-3.1-70b", "h100", "fp8", "fp8"), {"version": "0.33.0", "tp": 2, "cpu_offload_bytes": 10 * 2.0**30, "utilization": 0.95}, {},
    ),
    "sglang 0.3.6": (("llama-3.1-8b", "a100", "bf16", "fp8"), {"engine": "sglang", "version": "0.3.6"}, {}),
    "sglang 0.4.6 an EAGLE head": (
        ("llama-3.1-70b", "h100", "bf16"), {"engine": "sglang", "version": "0.4.6", "tp": 8},
        {"draft": Draft("eagle3", 4, "yuhuili/EAGLE3-LLaMA3.3-Instruct-70B")},
    ),
    "sglang 0.5.10 attention groups": (
        ("deepseek-v3", "h200", "fp8-block"), {"engine": "sglang", "version": "0.5.10", "dp": 16, "ep": 16, "cached": 256}, {},
    ),
    "tgi 3.3": (("llama-3.1-8b", "h100", "fp8", "fp8"), {"engine": "tgi", "version": "3.3", "tp": 2}, {}),
    "tensorrt-llm 0.18": (("llama-3.1-8b", "h100", "bf16"), {"engine": "tensorrt-llm", "version": "0.18.2", "tp": 2}, {}),
    "tensorrt-llm 1.0": (
        ("deepseek-v3", "h200", "fp8-block", "fp8"),
        {"engine": "tensorrt-llm", "version": "1.0", "dp": 8, "ep": 8, "max_num_batched_tokens": 512}, {},
    ),
    "tensorrt-llm 1.0 nodes": (("deepseek-v3", "h200", "fp8-block"), {"engine": "tensorrt-llm", "version": "1.0", "tp": 16}, {}),
    "llama.cpp b6200": (("llama-3.1-8b", "rtx-4090", "q4_k_m"), {"engine": "llama.cpp"}, {"release": "b6200", "checkpoint": "m.gguf"}),
    "llama.cpp newest": (("llama-3.1-8b", "rtx-4090", "q4_k_m", "q8_0"), {"engine": "llama.cpp", "batch": 4}, {"checkpoint": GGUF}),
    "llama.cpp two parts": (
        ("llama-3.1-70b", "rtx-4090", "q4_k_m"), {"engine": "llama.cpp", "tp": 2, "max_num_batched_tokens": 4096},
        {"release": "b9000", "checkpoint": "/models/70b.gguf"},
    ),
}  # fmt: skip


def made(case: str) -> Command:
    words, told, said = CASES[case]
    return launch_command(planned(*words, **told), **said)


@pytest.fixture(scope="module")
def commands() -> dict[str, Command]:
    return {case: made(case) for case in CASES}


def written(found: Command) -> str:
    """A command as the snapshots have it: server, then benchmark and comparison, then remarks."""
    bench = launch_benchmark(found)
    remarks = [f"# {r}" for r in (*found.remarks, *bench.remarks)]
    return "\n".join([script(found, bench, "server"), bench.text, bench.validate_text, *remarks])


def test_commands_are_those_of_the_snapshots(commands: dict[str, Command]) -> None:
    """To write them anew after a wanted change: INFERPLAN_REWRITE=1 pytest tests/test_launch.py, then read the difference."""
    text = "".join(f"## {case}\n{written(found)}\n\n" for case, found in commands.items())
    if os.environ.get("INFERPLAN_REWRITE"):
        SNAPSHOTS.write_text(text)
    assert text == SNAPSHOTS.read_text()


# The table of options.


def test_every_row_says_where_it_is_from() -> None:
    for row in rows():
        assert row.source.startswith("https://"), row
        assert row.tool == "known" or release_key(row.since), row
        assert not row.until or release_key(row.since) < release_key(row.until), row


def test_the_table_has_every_engine_that_is_told_something_and_is_a_catalog_name() -> None:
    known = {row.engine for row in rows()}
    assert set(TELLING) <= known
    assert all(Engine.find(name).name == name for name in TELLING)


@pytest.mark.parametrize("found", documented(), ids=lambda d: f"{d['engine']}-{d['tool']}-{d['release']}")
def test_flags_of_a_release_are_documented_there(found: dict[str, str]) -> None:
    names, key = set(found["options"].split()), release_key(found["release"])
    own = [row for row in rows() if (row.engine, row.tool) == (found["engine"], found["tool"]) and row.flag and row.holds(key)]
    assert own
    assert [row.flag for row in own if row.flag not in names] == []


def test_flags_of_commands_are_in_the_table_for_their_release(commands: dict[str, Command]) -> None:
    for case, found in commands.items():
        options = found.plan.options
        known = {row.flag for row in rows() if row.engine == options.name and row.tool == "serve" and row.holds(options.key)}
        flags = {w for w in (*found.argv, *found.worker) if w.startswith("--") and "=" not in w}
        assert flags
        assert flags <= known, case


def test_flags_of_benchmarks_are_in_the_table(commands: dict[str, Command]) -> None:
    known = {row.flag for row in rows() if row.tool == "bench"}
    for found in commands.values():
        assert {w for w in launch_benchmark(found).argv if re.match(r"--?[a-z]", w)} <= known | {"-m"}


def test_a_release_that_is_not_known_says_whose_options_it_takes() -> None:
    newer = launch_command(planned("llama-3.1-8b", "h100", "bf16", version="0.99.0"))
    assert any("vLLM 0.99.0 is newer than the options known here, which are those of 0.33" in r for r in newer.remarks)
    same = launch_command(planned("llama-3.1-8b", "h100", "bf16", version="0.33.0"))
    assert not any("newer" in r for r in same.remarks)
    with pytest.raises(Unsupported, match=r"options of vLLM are known from 0\.4\.3 on, not of 0\.3\.0"):
        launch_command(planned("llama-3.1-8b", "h100", "bf16", version="0.3.0"))


def test_a_month_is_the_release_of_the_estimate() -> None:
    month = launch_command(planned("llama-3.1-8b", "h100", "bf16", version="2025-10"), release="2025-10")
    assert month.plan.options.release == "0.11.0"
    assert "'2025-10' is taken for vLLM 0.11.0" in month.remarks
    first = launch_command(planned("llama-3.1-8b", "h100", "bf16", version="0.8.5 V0"), release="0.8.5 V0")
    assert any("VLLM_USE_V1=0" in r for r in first.remarks)


@pytest.mark.parametrize(
    ("text", "rule"),
    [
        ("engine,tool\nvllm,serve\n", "must have the columns"),
        ("{head}\nvllm,serve,tp,,--tp,{{}},0.4,,https://x,note,more\n", "more or fewer cells"),
        ("{head}\nvllm,cook,tp,,--tp,{{}},0.4,,https://x,\n", "line 2, tool"),
        ("{head}\nvllm,serve,tp,,--tp,{{}},soon,,https://x,\n", "line 2, since"),
    ],
)
def test_a_broken_table_is_refused_in_a_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str, rule: str) -> None:
    (tmp_path / "engines").mkdir()
    head = "engine,tool,sets,of,flag,value,since,until,source,note"
    (tmp_path / "engines" / "options.csv").write_text(text.format(head=head))
    monkeypatch.setenv("INFERPLAN_PATH", str(tmp_path))
    with pytest.raises(SpecError, match=rule):
        rows()


# What a release cannot say is said.


@pytest.mark.parametrize(
    ("words", "told", "said", "why"),
    [
        (("llama-3.1-8b", "h100", "bf16"), {"version": "0.4.3", "dp": 2}, {}, r"groups \(--dp 2\) \(known from 0.8.5"),
        (("mixtral-8x7b", "h100", "bf16"), {"version": "0.11", "tp": 4, "ep": 2}, {}, "no option for experts dealt out 2 ways"),
        (("mixtral-8x7b", "h100", "bf16"), {"engine": "sglang", "version": "0.4.6", "tp": 4, "ep": 2}, {}, "experts dealt out 2 ways"),
        (("llama-3.1-8b", "h100", "bf16", "int8"), {"version": "0.11"}, {}, "vLLM keeps no int8-kv cache"),
        (("llama-3.1-8b", "h100", "q4_k_m"), {"engine": "sglang", "version": "0.5.10"}, {}, "name a checkpoint in that format"),
        (("llama-3.1-8b", "h100", "awq"), {"engine": "llama.cpp"}, {"checkpoint": "m.gguf"}, "llama.cpp loads no awq weights"),
        (("llama-3.1-8b", "h100", "bf16"), {"engine": "tgi", "pp": 2}, {}, r"no option for pipeline stages \(--pp 2\)"),
        (("llama-3.1-8b", "h100", "bf16"), {"engine": "tgi", "utilization": 0.9}, {}, "no option for the share of memory"),
        (("llama-3.1-8b", "h100", "bf16", "fp8"), {"engine": "tensorrt-llm", "version": "0.18"}, {}, "no option for a cache in fp8"),
        (("deepseek-v3", "h200", "fp8-block"), {"engine": "tensorrt-llm", "tp": 2, "dp": 8}, {}, "an attention group of its own"),
        (("llama-3.1-70b", "h100", "bf16"), {"version": "0.11", "tp": 8}, {"draft": Draft("model", 4, "a/b")}, "for a model draft"),
        (("llama-3.1-70b", "h100", "bf16"), {"version": "0.11", "tp": 8}, {"draft": Draft("mtp", 1)}, "no modules that predict"),
        (("llama-3.1-70b", "h100", "bf16"), {"engine": "tgi", "tp": 8}, {"draft": Draft("eagle", 4, "a/b")}, "eagle draft"),
        (("8b", "rtx-4090", "q4_k_m"), {"engine": "llama.cpp", "tp": 2}, {"release": "b6500", "checkpoint": "m.gguf"}, "split of tensors"),
        (("8b", "rtx-4090", "q4_k_m", "q8_0"), {"engine": "llama.cpp", "tp": 2}, {"checkpoint": "m.gguf"}, "only with a 16-bit cache"),
        (("llama-3.1-8b", "h100", "bf16"), {"engine": "ideal"}, {}, "is no server"),
        (("llama-3.1-8b", "h100", "bf16"), {"engine": "ik-llama.cpp"}, {}, "no options of ik_llama.cpp are known"),
        (("llama-2-7b", "h100", "bf16"), {"max_model_len": 8192}, {}, "has a context of 4,096"),
        (("bert-large", "h100", "fp16"), {}, {}, "writes no tokens"),
        (("llama-3.1-8b", "h100", "fp16", "bf16"), {}, {}, "keeps a 16-bit cache in the type of the weights"),
    ],
    ids=str,
)  # fmt: skip
def test_what_cannot_be_said_is_an_error(words: tuple[str, ...], told: dict[str, Any], said: dict[str, Any], why: str) -> None:
    with pytest.raises(Unsupported, match=why):
        launch_command(planned(*words, **told), **said)


def test_what_does_not_fit_has_no_command(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(DoesNotFit, match=r"weights of 128\.48 GiB per device exceed the budget"):
        launch_command(planned("70b", "h100", "bf16", version="0.11"))
    assert main(["launch", "--model", "70b", "--gpu", "h100"]) == 1
    out, err = capsys.readouterr()
    assert out == ""
    assert len(err.splitlines()) == 1
    assert main(["launch", "--model", "8b", "--gpu", "h100", "--batch", "100000"]) == 1


# The weights.


def test_weights_are_those_asked_for_listed_or_quantised_while_they_load() -> None:
    vllm = Options.of("vllm", "vLLM", "0.11.0")

    def found(name: str, fmt: str, **told: Any) -> tuple[str, str]:
        w = weights(model(name), precision(fmt), vllm, asked=name, **told)
        return w.name, w.online

    assert found("meta-llama/Llama-3.3-70B-Instruct", "bf16") == ("meta-llama/Llama-3.3-70B-Instruct", "")
    assert found("META-LLAMA/llama-3.3-70b-instruct", "bf16") == ("meta-llama/Llama-3.3-70B-Instruct", "")
    assert found("llama-3.1-70b", "w4a16") == ("RedHatAI/Meta-Llama-3.1-70B-Instruct-quantized.w4a16", "")
    assert found("70b", "fp8") == ("meta-llama/Llama-2-70b-hf", "fp8")
    assert found("70b", "fp8", hub_id="own/model") == ("own/model", "fp8")
    assert found("70b", "fp8", checkpoint="/models/70b-fp8") == ("/models/70b-fp8", "")
    assert found("deepseek-v3", "fp8-block") == ("deepseek-ai/DeepSeek-V3", "")
    assert found("gpt-oss-120b", "mxfp4") == ("openai/gpt-oss-120b", "")
    with pytest.raises(Unsupported, match="unsloth/DeepSeek-V3-0324-BF16"):  # another release of the model, so it is named and not taken
        found("deepseek-v3", "bf16")
    with pytest.raises(Unsupported, match=r"no Hub id in the catalog.*--hub-id"):
        found("gpt-3-175b", "bf16")
    with pytest.raises(SpecError, match="is listed with weights in awq-int4-g128, not in fp8"):
        found("70b", "fp8", checkpoint="TheBloke/Llama-2-70B-AWQ")
    for name in ("--trust-remote-code", "", "a\nb"):
        with pytest.raises(SpecError, match="must be the name of a checkpoint"):
            found("70b", "fp8", checkpoint=name)


def test_every_catalog_model_has_a_hub_id_or_asks_for_one() -> None:
    from inferplan.specs import catalog
    from inferplan.specs.model import Model

    without = [m.name for e in catalog.entries("models") if not hub_ids(m := Model.load(e.path))]
    assert 0 < len(without) < 15
    assert all("/" in i and " " not in i for e in catalog.entries("models")[:40] for i in hub_ids(Model.load(e.path)))


# The shell.


def run(text: str, folder: Path, **env: str) -> list[list[str]]:
    """What programs of these names were started with, by a shell that has only them."""
    log = folder / "log"
    log.unlink(missing_ok=True)
    for name in ("vllm", "ray", "python3", "text-generation-launcher", "trtllm-serve", "srun", "llama-server", "llama-bench", "aiperf"):
        told = folder / name
        told.write_text(
            f"#!{sys.executable}\nimport json, sys\nopen({str(log)!r}, 'a').write(json.dumps([{name!r}, *sys.argv[1:]]) + '\\n')\n"
        )
        told.chmod(0o755)
    path = f"{folder}:/usr/bin:/bin"
    subprocess.run(["bash", "-e", "-c", text], check=True, cwd=folder, env={"PATH": path, **env}, capture_output=True)
    return [json.loads(line) for line in log.read_text().splitlines()]


def test_a_shell_starts_the_words_of_the_command(commands: dict[str, Command], tmp_path: Path) -> None:
    for case, found in commands.items():
        subprocess.run(["bash", "-n"], input=script(found, launch_benchmark(found)), text=True, check=True)
        started = run(found.script, tmp_path, NODE_RANK="1", LEADER_ADDRESS="10.0.0.1")
        known = {"NODE_RANK": "1", "LEADER_ADDRESS": "10.0.0.1"}
        wanted = [f"{w.before}{known[w.name]}{w.after}" if isinstance(w, Variable) else w for w in found.argv]
        assert started[-1] == wanted, case
        assert launch_benchmark(found).argv[0] in run(launch_benchmark(found).text, tmp_path)[0], case


def test_other_nodes_work_out_their_first_rank(commands: dict[str, Command], tmp_path: Path) -> None:
    found = commands["vllm 0.11.0 experts over nodes"]
    started = run(found.worker_script, tmp_path, NODE_RANK="1", LEADER_ADDRESS="10.0.0.1")
    assert started[0][-3:] == ["--headless", "--data-parallel-start-rank", "8"]
    assert run(commands["vllm 0.9.2 under Ray"].worker_script, tmp_path, LEADER_ADDRESS="10.0.0.1")[0][-1] == "--address=10.0.0.1:6379"


HOSTILE = ["/m/a b", "/m/$(touch hacked)", "/m/'; touch hacked; '", "/m/`touch hacked`", '/m/"x', "/m/EOF", "/m/*", "/m/$HOME", "/m/\\"]


@pytest.mark.parametrize("name", HOSTILE)
def test_names_reach_the_server_as_they_are(name: str, tmp_path: Path) -> None:
    found = launch_command(planned("llama-3.1-8b", "h100", "bf16", version="0.11"), checkpoint=name)
    assert run(found.script, tmp_path)[0][2] == name
    assert not (tmp_path / "hacked").exists()
    objects = list(yaml.safe_load_all(manifest_text(launch_manifest(found, claim="disk"))))
    word = objects[0]["spec"]["template"]["spec"]["containers"][0]["args"][0]
    assert word.replace("$$(", "$(") == name
    assert "$(" not in word.replace("$$(", "")


def test_a_word_that_is_a_variable_is_left_to_the_shell() -> None:
    words = ["vllm", "serve", "$(X)", "--master-addr", Variable("LEADER_ADDRESS", after=":1 2")]
    assert shell(words) == """vllm serve '$(X)' --master-addr "$LEADER_ADDRESS"':1 2'"""


def test_files_are_written_whatever_is_in_them(commands: dict[str, Command], tmp_path: Path) -> None:
    found = commands["tensorrt-llm 1.0"]
    run(found.script, tmp_path)
    name, text = found.files[0]
    assert (tmp_path / name).read_text() == text
    assert yaml.safe_load(text) == {"kv_cache_config": {"dtype": "fp8"}, "enable_attention_dp": True, "enable_chunked_prefill": True}


# The way back: the plan that a vLLM command says is the plan it was made of.


def said_back(argv: tuple[str, ...]) -> tuple[dict[str, str], str]:
    """Flags and values of a vLLM command, and its model."""
    found: dict[str, str] = {}
    for word, after in zip(argv, [*argv[1:], "--"], strict=True):
        if word.startswith("--"):
            found[word] = "" if after.startswith("--") else str(after)
    return found, argv[2]


BACK = [
    ("70b", "h100", "fp8", None, {"version": "0.11", "tp": 4, "batch": 16}),
    ("llama-3.1-70b", "h100", "bf16", "fp8", {"version": "0.6.6", "tp": 4, "cached": 512, "batch": 8}),
    ("llama-3.1-8b", "a100", "bf16", None, {"version": "0.20.2", "max_model_len": 100000, "max_num_batched_tokens": 4096}),
    ("llama-3.1-70b", "h100", "w4a16", "fp8", {"version": "0.33.0", "tp": 2, "utilization": 0.95, "max_num_seqs": 77}),
    ("llama-3.1-405b", "h100", "bf16", None, {"version": "0.12.0", "tp": 8, "pp": 2}),
    ("deepseek-v3", "h200", "fp8-block", None, {"version": "0.11.0", "dp": 16, "ep": 16, "batch": 64}),
    ("llama-3.1-70b", "h100", "bf16", None, {"version": "0.11.0", "tp": 2, "cpu_offload_bytes": 12 * 2.0**30, "utilization": 0.93}),
]


@pytest.mark.parametrize(("name", "part", "fmt", "kv", "told"), BACK, ids=lambda x: str(x)[:24])
def test_a_command_read_back_is_the_plan(name: str, part: str, fmt: str, kv: str | None, told: dict[str, Any]) -> None:
    first = planned(name, part, fmt, kv, **told)
    flags, checkpoint = said_back(launch_command(first).argv)
    from inferplan.readers.opening import open_model

    opened = open_model(checkpoint)
    stored = opened.precision or opened.model.dtype
    weights_in = flags.get("--quantization") or {"bfloat16": "bf16"}.get(flags.get("--dtype", ""), stored)
    dp = int(flags.get("--data-parallel-size", 1))
    tp = int(flags.get("--tensor-parallel-size", 1))
    ways = Parallel(tp, int(flags.get("--pipeline-parallel-size", 1)), dp, tp * dp if "--enable-expert-parallel" in flags else 1)
    again = estimate(
        opened.model, hardware(part), precision(weights_in, flags.get("--kv-cache-dtype")), parallel=ways, version=told["version"],
        max_model_len=int(flags["--max-model-len"]), max_num_seqs=int(flags["--max-num-seqs"]), batch=told.get("batch", 1),
        max_num_batched_tokens=int(flags["--max-num-batched-tokens"]), utilization=float(flags["--gpu-memory-utilization"]),
        cpu_offload_bytes=float(flags.get("--cpu-offload-gb", 0)) * 2.0**30, cached=told.get("cached", 0),
    )  # fmt: skip
    assert again.fits
    assert again.max_sequences == pytest.approx(first.max_sequences)
    assert again.capacity.kv_cache_tokens == pytest.approx(first.capacity.kv_cache_tokens, rel=1e-6)
    assert again.tpot_s == pytest.approx(first.tpot_s, rel=1e-6)
    assert ("--enable-prefix-caching" in flags) == bool(told.get("cached"))


def test_sglang_counts_all_groups_together(commands: dict[str, Command]) -> None:
    found = commands["sglang 0.5.10 attention groups"]
    flags = dict(zip(found.argv, found.argv[1:], strict=False))
    one = found.plan.e.capacity.launch
    assert int(flags["--tp-size"]) == 16
    assert int(flags["--max-running-requests"]) == 16 * int(one.max_num_seqs)
    assert int(flags["--chunked-prefill-size"]) == 16 * int(one.max_num_batched_tokens)


@pytest.mark.parametrize(("layers", "experts", "word"), [(None, 0, "33"), (32, 0, "32"), (20, 0, "20"), (0, 0, "0"), (40, 0, "33")])
def test_llama_cpp_counts_the_output_projection_as_a_layer(layers: int | None, experts: int, word: str) -> None:
    host = hardware("ryzen-9950x") if layers is not None and layers <= 32 else None
    found = planned("llama-3.1-8b", "rtx-4090", "q4_k_m", engine="llama.cpp", gpu_layers=layers, cpu_experts=experts, host=host)
    argv = launch_command(found, checkpoint="m.gguf").argv
    assert argv[argv.index("--n-gpu-layers") + 1] == word


# Nodes.


def test_nodes_are_of_what_the_link_joins_or_of_what_is_said() -> None:
    assert (nodes(planned("llama-3.1-8b", "h100", "bf16")).count, nodes(planned("llama-3.1-405b", "h100", "bf16", tp=8, pp=2)).count) == (
        1,
        2,
    )
    four = nodes(planned("llama-3.1-70b", "h100", "bf16", tp=8), 4)
    assert (four.count, four.devices, four.remark) == (2, 4, "")
    with pytest.raises(SpecError, match="does not divide the 8 devices"):
        nodes(planned("llama-3.1-70b", "h100", "bf16", tp=8), 3)
    with pytest.raises(SpecError, match="gpus_per_node"):
        nodes(planned("llama-3.1-405b", "gb200", "bf16", tp=8, pp=2))
    assert "taken to be in one" in nodes(planned("llama-3.1-8b", "l40s", "bf16", tp=2)).remark


# Kubernetes.


def containers(found: dict[str, Any]) -> Iterator[tuple[dict[str, Any], dict[str, Any]]]:
    """Pods of a workload, with their containers."""
    spec = found["spec"]
    templates = (
        [spec["template"]] if "template" in spec else [spec["leaderWorkerTemplate"][n] for n in ("leaderTemplate", "workerTemplate")]
    )
    for template in templates:
        yield template, template["spec"]["containers"][0]


@pytest.mark.parametrize(
    "case",
    [case for case in CASES if case not in ("tensorrt-llm 1.0 nodes", "tensorrt-llm 0.18", "llama.cpp b6200", "llama.cpp two parts")],
)
def test_manifests_have_what_kubernetes_asks_for(case: str, commands: dict[str, Command]) -> None:
    found = commands[case]
    text = manifest_text(launch_manifest(found, replicas=3))
    assert "&id" not in text
    objects = list(yaml.safe_load_all(text))
    *files, workload, service = objects
    several = found.plan.nodes.count > 1
    assert (workload["kind"], workload["spec"]["replicas"]) == ("LeaderWorkerSet" if several else "Deployment", 3)
    assert [f["kind"] for f in files] == ["ConfigMap"] * len(found.files)
    for o in objects:
        assert o["apiVersion"]
        assert LABEL.fullmatch(o["metadata"]["name"])
        assert len(o["metadata"]["name"]) <= 63
    pods = list(containers(workload))
    for template, container in pods:
        assert container["resources"]["limits"] == {"nvidia.com/gpu": found.plan.nodes.devices} == container["resources"]["requests"]
        assert container["image"].count(":") == 1
        assert {m["name"] for m in container["volumeMounts"]} == {v["name"] for v in template["spec"]["volumes"]}
        assert next(v for v in template["spec"]["volumes"] if v["name"] == "shared-memory")["emptyDir"]["medium"] == "Memory"
        token = next(e for e in container["env"] if e["name"] == "HF_TOKEN")
        assert token["valueFrom"]["secretKeyRef"] == {"name": "hub-token", "key": "token", "optional": True}
        told = next(e for e in container["env"] if e["name"] in ("HF_HOME", "HUGGINGFACE_HUB_CACHE", "LLAMA_CACHE"))
        assert told["value"] == next(m for m in container["volumeMounts"] if m["name"] == "weights")["mountPath"]
        names = {e["name"] for e in container["env"]}
        words = [*container.get("command", []), *container.get("args", [])]
        assert all(isinstance(w, str) for w in words)
        used = {n for w in words for n in re.findall(r"(?<!\$)\$\((\w+)\)", w)}
        assert used <= names
    head, first = pods[0]
    port = first["ports"][0]
    assert service["spec"]["ports"][0]["port"] == port["containerPort"] == found.plan.port
    for probe in ("startupProbe", "readinessProbe", "livenessProbe"):
        assert first[probe]["httpGet"] == {"path": "/health", "port": port["name"]}
    labels = head["metadata"]["labels"]
    if several:
        assert workload["spec"]["leaderWorkerTemplate"]["size"] == found.plan.nodes.count
        assert service["spec"]["selector"] == {"leaderworkerset.sigs.k8s.io/name": workload["metadata"]["name"], "role": "leader"}
        assert labels["role"] == "leader"
        assert "role" not in pods[1][0]["metadata"]["labels"]
    else:
        assert workload["spec"]["selector"]["matchLabels"] == service["spec"]["selector"] == labels


def test_a_pods_shell_runs_what_kubernetes_leaves_of_it(commands: dict[str, Command], tmp_path: Path) -> None:
    workload = launch_manifest(commands["vllm 0.11.0 experts over nodes"])[0]
    command = list(containers(workload))[1][1]["command"]
    assert command[:2] == ["/bin/sh", "-ec"]
    started = run(command[2].replace("$$(", "$("), tmp_path, NODE_RANK="1", LEADER_ADDRESS="a")
    assert started[0][-1] == "8"


def test_manifests_refuse_what_has_no_name_image_or_place(commands: dict[str, Command]) -> None:
    plain = commands["vllm 0.4.3"]
    for name in ("Upper", "a_b", "-a", "a" * 51, "a\nb", "a: b", ""):
        with pytest.raises(SpecError, match="must be a DNS label"):
            launch_manifest(plain, name=name)
    with pytest.raises(SpecError, match="between 1 and 10,000"):
        launch_manifest(plain, replicas=0)
    with pytest.raises(Unsupported, match="MPI"):
        launch_manifest(commands["tensorrt-llm 1.0 nodes"])
    with pytest.raises(Unsupported, match="no image of vLLM 0.11 for parts of AMD"):
        launch_manifest(launch_command(planned("llama-3.1-8b", "mi300x", "bf16", version="0.11")))
    amd = launch_manifest(launch_command(planned("llama-3.1-8b", "mi300x", "bf16", version="0.11")), image="own/vllm:1")
    assert next(containers(amd[0]))[1]["resources"]["limits"] == {"amd.com/gpu": 1}
    with pytest.raises(Unsupported, match="no Kubernetes resource"):
        launch_manifest(launch_command(planned("llama-3.1-8b", "m4-max", "q4_k_m", engine="llama.cpp"), checkpoint=GGUF), image="x/y:1")
    with pytest.raises(Unsupported, match="is no Hub id"):
        launch_manifest(commands["llama.cpp two parts"])
    held = launch_manifest(commands["llama.cpp two parts"], claim="models")[0]["spec"]["template"]["spec"]
    assert held["volumes"][1] == {"name": "weights", "persistentVolumeClaim": {"claimName": "models"}}
    assert held["containers"][0]["volumeMounts"][1] == {"name": "weights", "mountPath": "/models"}
    assert [e["name"] for e in held["containers"][0]["env"]] == ["HF_TOKEN"]  # nothing is downloaded


@pytest.mark.parametrize(
    ("engine", "variable"), [("vllm", "HF_HOME"), ("sglang", "HF_HOME"), ("tgi", "HUGGINGFACE_HUB_CACHE"), ("llama.cpp", "LLAMA_CACHE")]
)
def test_a_pod_keeps_downloads_where_its_volume_is(engine: str, variable: str) -> None:
    gguf = engine == "llama.cpp"
    e = planned("llama-3.1-8b", "h100", "q4_k_m" if gguf else "bf16", engine=engine)
    found = launch_manifest(launch_command(e, checkpoint="a/b-GGUF" if gguf else None), image="x/y:1", claim="kept")
    container = next(containers(found[0]))[1]
    assert {"name": variable, "value": "/models"} in container["env"]
    assert {"name": "weights", "mountPath": "/models"} in container["volumeMounts"]


@pytest.mark.parametrize("text", ["meta-llama/Llama-3.1-70B", "$(rm -rf)", "-", "", "日本", "A" * 200, "a.b_c/D--e-"])
def test_any_text_becomes_a_dns_label(text: str) -> None:
    assert LABEL.fullmatch(dns_name(text))
    assert len(dns_name(text)) <= 50


# Benchmarks, and what reads their results.


def test_a_benchmark_has_the_load_of_the_plan(commands: dict[str, Command]) -> None:
    def flags(found: Command, **load: Any) -> dict[str, str]:
        argv = launch_benchmark(found, **load).argv
        return dict(zip(argv, [*argv[1:], ""], strict=True))

    vllm = flags(commands["vllm 0.4.3"])
    assert (vllm["--random-input-len"], vllm["--random-output-len"], vllm["--max-concurrency"]) == ("1024", "256", "16")
    assert "--ignore-eos" in vllm
    cached = flags(commands["vllm 0.6.6 prefixes and n-grams"])
    assert (cached["--random-prefix-len"], cached["--random-input-len"]) == ("512", "512")
    rate = flags(commands["sglang 0.4.6 an EAGLE head"], rate_per_s=2.5)
    assert (rate["--request-rate"], rate["--num-prompts"], rate["--random-range-ratio"]) == ("2.5", "300", "1")
    assert "--max-concurrency" not in rate
    assert "--extra-inputs" not in flags(commands["tgi 3.3"])
    assert flags(commands["tensorrt-llm 1.0"])["--extra-inputs"] == "ignore_eos:true"
    assert flags(commands["llama.cpp b6200"])["-pg"] == "1024,256"
    assert launch_benchmark(commands["llama.cpp newest"]).argv[:2] == ("aiperf", "profile")
    for load in (
        {"rate_per_s": 0.0},
        {"rate_per_s": float("nan")},
        {"concurrency": 0},
        {"requests": 0},
        {"rate_per_s": 1.0, "concurrency": 1},
    ):
        with pytest.raises(SpecError):
            launch_benchmark(commands["vllm 0.4.3"], **load)


VLLM_RESULT = {
    "date": "20260101-000000", "backend": "openai", "model_id": "m", "num_prompts": 128, "request_rate": "inf", "max_concurrency": 16,
    "completed": 128, "total_input_tokens": 131072, "total_output_tokens": 32768, "request_throughput": 5.0, "output_throughput": 1280.0,
    "total_token_throughput": 6400.0, "mean_ttft_ms": 100.0, "mean_tpot_ms": 12.0,
}  # fmt: skip


def test_the_comparison_reads_the_result_of_the_benchmark(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    plan = planned("70b", "h100", "fp8", version="0.11", tp=4, batch=16, utilization=0.93, max_num_batched_tokens=4096)
    bench = launch_benchmark(launch_command(plan))
    Path(bench.result).write_text(json.dumps(VLLM_RESULT))
    assert main([*bench.validate[1:], "--quiet", "--json", "--csv", "rows.csv"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["groups"] or found
    predicted = {r["quantity"]: r for r in csv.DictReader(Path("rows.csv").read_text().splitlines())}
    assert set(predicted) == {"ttft_s", "tpot_s", "requests_per_s", "output_tokens_per_s", "total_tokens_per_s"}
    assert float(predicted["tpot_s"]["predicted"]) > 0


# The command line.


def test_stdout_is_a_script_and_remarks_are_beside_it(capsys: pytest.CaptureFixture[str]) -> None:
    base = ["launch", "--model", "70b", "--gpu", "h100", "--tp", "4", "--dtype", "fp8", "--engine-version", "0.11"]
    assert main(base) == 0
    out, err = capsys.readouterr()
    subprocess.run(["bash", "-n"], input=out, text=True, check=True)
    assert "vllm serve meta-llama/Llama-2-70b-hf" in out
    assert "inferplan validate result.json" in out
    assert max(map(len, out.splitlines())) <= 80
    assert "quantised to fp8 by vLLM while it loads" in " ".join(err.split())
    assert main([*base, "--only", "server"]) == 0
    assert shlex.split(capsys.readouterr().out)[:3] == ["vllm", "serve", "meta-llama/Llama-2-70b-hf"]
    assert main([*base, "--as", "kubernetes", "--replicas", "2", "--name", "chat"]) == 0
    objects = list(yaml.safe_load_all(capsys.readouterr().out))
    assert [(o["kind"], o["metadata"]["name"]) for o in objects] == [("Deployment", "chat"), ("Service", "chat")]
    assert main([*base, "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert (found["schema"], found["argv"][0], found["online"]) == ("inferplan/launch/1", "vllm", "fp8")


def test_a_draft_is_looked_up_by_name(capsys: pytest.CaptureFixture[str]) -> None:
    base = ["launch", "--model", "llama-3.1-70b", "--gpu", "h100", "--tp", "8", "--engine-version", "0.20", "--only", "server"]
    assert main([*base, "--draft", "llama-3.2-1b", "--draft-tokens", "3"]) == 0
    argv = shlex.split(capsys.readouterr().out)
    said = json.loads(argv[argv.index("--speculative-config") + 1])
    assert said == {"method": "draft_model", "model": hub_ids(model("llama-3.2-1b"))[0], "num_speculative_tokens": 3}


@pytest.mark.parametrize(
    ("more", "why"),
    [
        (["--as", "helm"], "--as: helm: must be one of"),
        (["--only", "all"], "--only: all: must be one of"),
        (["--only", "server", "--as", "kubernetes"], "--only"),
        (["--as", "leaderworkerset"], "is for more than one node"),
        (["--name", "x"], "goes with --as kubernetes"),
        (["--replicas", "0", "--as", "kubernetes"], "replicas: 0"),
        (["--port", "99999"], "port: 99999"),
        (["--hub-id", "no-owner"], "--hub-id: no-owner: must be owner/name"),
        (["--checkpoint", "-rf"], "must be the name of a checkpoint"),
        (["--draft", "eagle"], "must name the checkpoint of the eagle draft"),
        (["--draft", "ngram", "--draft-checkpoint", "a/b"], "says nothing for ngram"),
        (["--draft-checkpoint", "a/b"], "says nothing without --draft"),
        (["--draft", "ngram", "--draft-tokens", "0"], "--draft-tokens: 0"),
        (["--gpus-per-node", "0"], "--gpus-per-node: 0"),
        (["--rate", "-1"], "rate: -1"),
        (["--rate", "nan"], "rate: nan"),
        (["--requests", "0"], "requests: 0"),
        (["--engine", "ideal"], "is no server"),
    ],
    ids=str,
)
def test_bad_input_is_one_line_and_exit_code_two(more: list[str], why: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["launch", "--model", "8b", "--gpu", "h100", *more]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert len(err.splitlines()) == 1
    assert why in err


def test_a_notebook_has_the_same(commands: dict[str, Command]) -> None:
    found = ip.estimate(ip.model("llama-3.1-8b"), ip.hardware("h100"), ip.precision("bf16"), version="0.11.0")
    command = ip.launch_command(found)
    assert command.text.startswith("vllm serve meta-llama/Llama-3.1-8B-Instruct \\\n  --host")
    assert ip.launch_manifest(command)[0]["kind"] == "Deployment"
    assert ip.launch_benchmark(command).argv[:3] == ("vllm", "bench", "serve")
