"""The command line as a user meets it: answers, exit codes, one-line errors, files written whole."""

import csv
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from inferplan.cli.app import COMMANDS, main


def run(capsys: pytest.CaptureFixture[str], *args: str) -> tuple[int, str, str]:
    code = main(list(args))
    out, err = capsys.readouterr()
    return code, out, err


def fails(capsys: pytest.CaptureFixture[str], *args: str) -> str:
    code, out, err = run(capsys, *args)
    assert code == 2, (out, err)
    assert not out
    assert err.startswith("inferplan: ")
    assert err.count("\n") == 1, err
    assert "Traceback" not in err
    return err


def test_the_main_job(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, err = run(capsys, "estimate", "--model", "7b", "--gpu", "h100", "--dtype", "fp8")
    assert code == 0
    assert not err
    for words in (
        "Llama 2 7B on one NVIDIA H100 SXM5 80GB",
        "7b -> llama-2-7b",
        "Fits, with room for",
        "Decode is memory-bound",
        "Times are estimates",
    ):
        assert words in out


def test_json_is_in_base_units(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = run(capsys, "estimate", "-m", "7b", "-g", "a100", "-d", "fp16", "--json")
    found = json.loads(out)
    assert code == 0
    assert found["params"] == 6_738_415_616
    assert found["kv_bytes_per_token"] == 524_288
    assert found["floor_tpot_s"] == pytest.approx(6.78e-3, rel=1e-3)
    assert found["tpot_s"] > found["floor_tpot_s"]
    assert found["decode"]["bound"] == "memory"
    assert found["schema"] == "inferplan/estimate/5"


def test_what_does_not_fit_ends_with_1(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = run(capsys, "estimate", "-m", "deepseek-v3", "-g", "4090")
    assert code == 1
    assert "Does not fit" in out


def test_a_published_config_is_read(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    config = {
        "model_type": "llama",
        "architectures": ["LlamaForCausalLM"],
        "hidden_size": 4096,
        "intermediate_size": 14336,
        "num_hidden_layers": 32,
    }
    config |= {
        "num_attention_heads": 32,
        "num_key_value_heads": 8,
        "vocab_size": 128256,
        "torch_dtype": "bfloat16",
        "tie_word_embeddings": False,
    }
    path = tmp_path / "mine" / "config.json"
    path.parent.mkdir()
    path.write_text(json.dumps(config))
    for text in (str(path), str(path.parent)):
        code, out, _ = run(capsys, "estimate", "-m", text, "-g", "h100", "--json")
        assert code == 0
        assert json.loads(out)["params"] == 8_030_261_248
    spec = tmp_path / "mine.yaml"
    code, out, err = run(capsys, "import", str(path), "-o", str(spec))
    assert code == 0
    assert "8,030,261,248" in err
    code, out, _ = run(capsys, "check", str(spec))
    assert code == 0
    assert "No fault found" in out
    assert "exists already" in fails(capsys, "import", str(path), "-o", str(spec))


@pytest.mark.parametrize("name", ["7b", "a100", "h100", "fp8", "q4_k_m", "deepseek-v3", "m3-max", "gpt-oss-120b"])
def test_show(capsys: pytest.CaptureFixture[str], name: str) -> None:
    code, out, err = run(capsys, "show", name)
    assert code == 0
    assert not err
    assert len(out.splitlines()) > 10
    code, out, _ = run(capsys, "show", name, "--json")
    assert json.loads(out)["schema"].startswith("inferplan/")


def test_show_7b_has_both_rules(capsys: pytest.CaptureFixture[str]) -> None:
    _, out, _ = run(capsys, "show", "7b")
    flat = " ".join(out.split())
    for words in (
        "6,738,415,616",
        "7 B parameters at 2 bytes = 14 GB per token, 7 ms at 2 TB/s",
        "KV bytes = 2 x batch x length x 32 layers x 32 KV heads x 128 x bytes",
        "524,288 B",
    ):
        assert words in flat


def test_show_a100_names_sources(capsys: pytest.CaptureFixture[str]) -> None:
    _, out, _ = run(capsys, "show", "a100")
    for words in ("2.039 TB/s", "Source sheet: NVIDIA A100 data sheet", "bf16        bf16                    153", "fp8         bf16"):
        assert words in out


@pytest.mark.parametrize("kind", ["hardware", "models", "formats", "engines"])
def test_list(capsys: pytest.CaptureFixture[str], tmp_path: Path, kind: str) -> None:
    target = tmp_path / "rows.csv"
    code, out, _ = run(capsys, "list", kind, "--csv", str(target))
    assert code == 0
    rows = list(csv.DictReader(target.read_text().splitlines()))
    code, out, _ = run(capsys, "list", kind, "--json")
    assert [r["name"] for r in json.loads(out)] == [r["name"] for r in rows]
    assert len(rows) >= {"hardware": 179, "models": 120, "formats": 80, "engines": 0}[kind]


def test_list_filters(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, err = run(capsys, "list", "hardware", "mi300")
    assert code == 0
    assert "mi300x" in out
    assert "h100" not in out
    assert " of 179 hardware" in err


def test_near_misses(capsys: pytest.CaptureFixture[str]) -> None:
    assert "no hardware called 'h10'; near it: h100" in fails(capsys, "estimate", "-m", "7b", "-g", "h10")
    assert "no model called 'lama-3.1-8b'; near it: llama-3.1-8b" in fails(capsys, "estimate", "-m", "lama-3.1-8b", "-g", "h100")
    assert "no precision called 'fp7'" in fails(capsys, "estimate", "-m", "7b", "-g", "h100", "-d", "fp7")


@pytest.mark.parametrize(
    ("args", "words"),
    [
        (("estimate", "-m", "7b"), "Missing option '--gpu'"),
        (("estimate", "-m", "7b", "-g", "h100", "--isl", "0"), "--isl: 0: must be 1 or more"),
        (("estimate", "-m", "7b", "-g", "h100", "--batch", "-3"), "--batch: -3: must be 1 or more"),
        (("estimate", "-m", "7b", "-g", "h100", "--isl", "999999999999"), "must lie between 1 and 100,000,000"),
        (("estimate", "-m", "7b", "-g", "h100", "--batch", "many"), "must be a whole number"),
        (("estimate", "-m", "./no-such-folder", "-g", "h100"), "no file or folder called './no-such-folder'"),
        (("show", "nothing-like-this"), "no hardware called 'nothing-like-this'"),
        (("check", "no-such-file.yaml"), "no file or folder called"),
        (("validate", "no-such-file.csv"), "cannot be read: No such file or directory"),
        (("nonsense",), "no command called 'nonsense'"),
        (("list", "cars"), "is not one of"),
        (("estimate", "-m", "7b", "-g", "h100", "--nope"), "No such option: --nope"),
    ],
)
def test_wrong_input_is_one_line(capsys: pytest.CaptureFixture[str], args: tuple[str, ...], words: str) -> None:
    assert words in fails(capsys, *args)


def test_a_broken_part_names_file_and_field(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    bad = tmp_path / "mine.yaml"
    bad.write_text(
        "name: mine\ntitle: Mine\nvendor: Me\nsources: {s: {title: t, kind: vendor}}\nmemory: {bandwidth: {value: 3.35 TB, source: s}}\n"
    )
    err = fails(capsys, "check", str(bad))
    assert "mine.yaml: memory.bandwidth" in err
    assert "3.35 TB/s" in err


def test_user_folder_shadows(capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "hardware").mkdir()
    (tmp_path / "hardware" / "mine.yaml").write_text(
        "name: mine\ntitle: My Card\naliases: [h100]\nvendor: Me\nsources: {s: {title: t, kind: vendor}}\n"
        "memory: {capacity: {value: 80 GiB, source: s}, bandwidth: {value: 1 TB/s, source: s}}\n"
        "peak: {bf16: {value: 100 TFLOP/s, source: s}}\n"
    )
    monkeypatch.setenv("INFERPLAN_PATH", str(tmp_path))
    code, out, _ = run(capsys, "estimate", "-m", "7b", "-g", "h100", "-d", "bf16")
    assert code == 0
    assert "My Card" in out
    assert "assumed" in out


def test_validate_writes_one_row_per_case(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    cases, errors = tmp_path / "cases.csv", tmp_path / "errors.csv"
    cases.write_text("case,model,kv,params,kv_bytes_per_token,tpot_s,team\na,7b,bf16,6738415616,524288,0.01,x\nb,no-such-model,,1,,,y\n")
    code, out, _ = run(capsys, "validate", str(cases), "--csv", str(errors), "--by", "quantity,team")
    assert code == 0
    assert "2 of 4 rows predicted, 2 of them exact" in out
    rows = list(csv.DictReader(errors.read_text().splitlines()))
    assert list(rows[0])[:8] == ["case", "quantity", "value", "predicted", "low", "high", "error", "refused"]
    assert [(r["case"], r["quantity"], r["predicted"], r["error"]) for r in rows[:2]] == [
        ("a", "params", "6738415616", "0"),
        ("a", "kv_bytes_per_token", "524288", "0"),
    ]
    assert rows[2]["predicted"] == ""
    assert rows[2]["refused"] == "the row names no gpu"
    assert "no model called" in rows[3]["refused"]
    assert rows[3]["team"] == "y"


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("model,params\n7b,many\n", "line 2, params: many: must be a number"),
        ("model,params\n7b,nan\n", "must be finite"),
        ("gpu,params\nh100,1\n", "has no column 'model'"),
        ("model,gpu\n7b,h100\n", "has neither columns 'quantity' and 'value'"),
        ("model,params\n7b,1,2\n", "line 2: has more cells than columns"),
        ("model,quantity,value,unit\n7b,params,1,furlong\n", "unit: furlong"),
    ],
)
def test_broken_case_files(capsys: pytest.CaptureFixture[str], tmp_path: Path, text: str, words: str) -> None:
    cases = tmp_path / "cases.csv"
    cases.write_text(text)
    assert words in fails(capsys, "validate", str(cases))


def test_nothing_is_left_behind_where_a_file_cannot_be_written(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    assert "cannot be written" in fails(capsys, "list", "hardware", "--csv", str(tmp_path / "no" / "rows.csv"))
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("command", COMMANDS)
def test_help(command: str) -> None:
    found = subprocess.run([sys.executable, "-m", "inferplan.cli.app", command, "--help"], capture_output=True, text=True, check=True)
    assert "Usage: inferplan " + command in found.stdout


def test_help_loads_no_command_and_no_heavy_library() -> None:
    code = (
        "import sys; from inferplan.cli.app import main; main(['--help']); "
        "print([m for m in ('pandas', 'matplotlib', 'numpy', 'inferplan.specs.model', 'yaml') if m in sys.modules])"
    )
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert found.stdout.splitlines()[-1] == "[]"


def test_estimate_loads_neither_pandas_nor_matplotlib() -> None:
    code = (
        "import sys; from inferplan.cli.app import main; main(['estimate', '-m', '7b', '-g', 'h100']); "
        "print([m for m in ('pandas', 'matplotlib') if m in sys.modules])"
    )
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert found.stdout.splitlines()[-1] == "[]"


@pytest.mark.parametrize("name", ["a100", "7b"])
def test_show_loads_no_estimator(name: str) -> None:
    code = (
        f"import sys; from inferplan.cli.app import main; main(['show', '{name}']); "
        "print([m for m in ('inferplan.deployment', 'inferplan.roofline', 'pandas', 'matplotlib') if m in sys.modules])"
    )
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert found.stdout.splitlines()[-1] == "[]"


def test_colour_stays_out_of_pipes() -> None:
    found = subprocess.run([sys.executable, "-m", "inferplan.cli.app", "show", "a100"], capture_output=True, text=True, check=True)
    assert "\x1b" not in found.stdout


@pytest.mark.parametrize("width", ["60", "80", "140"])
def test_screens_keep_to_the_width(width: str) -> None:
    for args in (("estimate", "-m", "gpt-oss-120b", "-g", "h200"), ("show", "7b"), ("show", "h100")):
        env = {"COLUMNS": width, "PATH": "/usr/bin:/bin", "HOME": "/"}
        found = subprocess.run([sys.executable, "-m", "inferplan.cli.app", *args], capture_output=True, text=True, check=True, env=env)
        assert not [line for line in found.stdout.splitlines() if len(line) > int(width) and " " in line.strip()]  # an address may be wider


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (b'case,model,params\na,"7b,6738415616\n', "is not a CSV file that can be read: unexpected end of data"),
        (b'case,"model,params\na,7b,6738415616\n', "is not a CSV file that can be read: unexpected end of data"),
        (b"case,model,params\na,7b,67\x00\n", "line 2: holds a NUL byte"),
        (b"\x00", "line 1: holds a NUL byte"),
    ],
)
def test_case_files_cut_short(capsys: pytest.CaptureFixture[str], tmp_path: Path, data: bytes, words: str) -> None:
    cases = tmp_path / "cases.csv"
    cases.write_bytes(data)
    err = fails(capsys, "validate", str(cases))
    assert "cases.csv: " in err
    assert words in err


@pytest.mark.parametrize("end", ["\r", "\r\n", "\n"])
def test_case_files_of_any_line_end(capsys: pytest.CaptureFixture[str], tmp_path: Path, end: str) -> None:
    cases = tmp_path / "cases.csv"
    cases.write_bytes(end.join(["model,params,why", "7b,6738415616,x", '7b,6738415616,"two', 'lines"', ""]).encode())
    code, out, _ = run(capsys, "validate", str(cases))
    assert code == 0
    assert "2 of 2 rows predicted, 2 of them exact" in out


ODD = "a\nb\x1b[31m\u202ec\x85d"


@pytest.mark.parametrize(
    "args",
    [
        ("check", ODD),
        ("show", ODD),
        ("estimate", "-m", ODD, "-g", "h100"),
        ("estimate", "-m", "7b", "-g", ODD),
        ("estimate", "-m", "7b", "-g", "h100", "-d", ODD),
        ("estimate", "-m", "7b", "-g", "h100", "--engine", ODD),
        ("estimate", "-m", "./" + ODD, "-g", "h100"),
        ("validate", ODD),
        ("list", "hardware", "--csv", f"no-such-folder/{ODD}"),
        (ODD,),
    ],
)
def test_odd_characters_stand_as_escapes(capsys: pytest.CaptureFixture[str], args: tuple[str, ...]) -> None:
    err = fails(capsys, *args)
    assert err[:-1].isprintable()
    assert "\\x1b[31m\\u202ec\\x85d" in err


def test_odd_characters_in_a_config_stand_as_escapes(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    path = tmp_path / "config.json"
    path.write_text(json.dumps({"model_type": ODD}))
    err = fails(capsys, "check", str(path))
    assert err[:-1].isprintable()
    assert "\\u202ec" in err


MODEL = "name: mine\ntitle: Mine\nfamily: llama\nvocab: 100\nhidden: 64\nlayers: a*2\nblocks: {a: {ffn: {kind: dense, width: 128}}}\n"


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("dtype: wombat", "dtype: wombat: no weight format called 'wombat'"),
        ("dtype: fb16", "near it: "),
        ("precision: wombat", "precision: wombat: no precision called 'wombat'"),
        ("checkpoints: {me/mine: fp99}", "checkpoints.me/mine: fp99: no precision called 'fp99'; near it: "),
    ],
)
def test_formats_that_are_not_known(capsys: pytest.CaptureFixture[str], tmp_path: Path, line: str, words: str) -> None:
    path = tmp_path / "mine.yaml"
    path.write_text(MODEL)
    assert run(capsys, "check", str(path))[0] == 0
    path.write_text(MODEL + line + "\n")
    err = fails(capsys, "check", str(path))
    assert "mine.yaml: " in err
    assert words in err


def test_the_search_path_names_folders(capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").write_text("")
    for wrong in ("gone", "file"):
        monkeypatch.setenv("INFERPLAN_PATH", str(tmp_path / wrong))
        assert f"INFERPLAN_PATH: {tmp_path / wrong}: is not a folder" in fails(capsys, "list", "models")
    monkeypatch.setenv("INFERPLAN_PATH", "")
    assert run(capsys, "list", "models")[0] == 0


def test_own_folders_are_listed_without_what_is_no_file(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "models"
    folder.mkdir()
    os.mkfifo(folder / "pipe.yaml")
    (folder / "gone.yaml").symlink_to("nowhere")
    (folder / "folder.yaml").mkdir()
    (folder / "torn.yaml").write_text("name: [\n")
    (folder / "mine.yaml").write_text(MODEL)
    monkeypatch.setenv("INFERPLAN_PATH", str(tmp_path))
    code, out, _ = run(capsys, "list", "models", "--json")
    found = {row["name"]: row["title"] for row in json.loads(out)}
    assert code == 0
    assert found["mine"] == "Mine"
    assert found["torn"].startswith("broken: is not valid YAML")
    assert not {"pipe", "gone", "folder"} & set(found)


def test_show_a100_counts_integers_as_operations_and_names_a_price_once(capsys: pytest.CaptureFixture[str]) -> None:
    lines = [" ".join(line.split()) for line in run(capsys, "show", "a100")[1].splitlines()]
    assert "peak.int8 624 TOP/s sheet published high" in lines
    assert "peak.int4 1.248 POP/s sheet published high" in lines
    assert "peak.bf16 312 TFLOP/s sheet published high" in lines
    prices = [line for line in lines if "USD/h" in line]
    assert len(prices) == len(set(prices)) >= 10


def test_a_config_without_dtype_says_what_is_assumed(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    config = {"model_type": "llama", "hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2, "num_attention_heads": 4}
    path = tmp_path / "config.json"
    for stated, said in (({}, True), ({"torch_dtype": None}, True), ({"torch_dtype": "float16"}, False), ({"dtype": "bfloat16"}, False)):
        path.write_text(json.dumps({**config, "vocab_size": 100, **stated}))
        code, out, _ = run(capsys, "show", str(path))
        assert code == 0
        assert ("bf16 (assumed)" in out) is said
