"""Step tables against the engine's own passes, and lookups against their points."""

import numpy as np
import pytest

from inferplan.engine.segment import Segment
from inferplan.engine.step import Setting, step
from inferplan.errors import SpecError
from inferplan.names import hardware, model, precision
from inferplan.roofline.efficiency import Efficiency
from inferplan.serving.steps import Curve, file_steps, linear_steps, table_steps
from inferplan.specs.parallel import Parallel

CASES = [
    ("llama-2-7b", "a100", "bf16", Parallel()),
    ("llama-3.1-70b", "h100", "fp8", Parallel(tp=4)),
    ("mixtral-8x7b", "h100", "bf16", Parallel(tp=4)),
    ("deepseek-v3", "h200", "fp8", Parallel(tp=8)),
]


@pytest.mark.parametrize(("name", "gpu", "dtype", "parallel"), CASES, ids=[c[0] for c in CASES])
def test_a_table_is_within_a_percent_of_the_engine(name, gpu, dtype, parallel):
    m, h, p, setting = model(name), hardware(gpu), precision(dtype), Setting(parallel, Efficiency.default())
    table = table_steps(m, h, p, setting, most_decodes=256, most_context=16384, most_tokens=8192)
    rng = np.random.default_rng(1)
    for _ in range(40):
        n, context, chunk = (int(2 ** rng.uniform(*span)) for span in ((0, 8), (4, 13.9), (4.5, 13)))
        past = int(rng.choice([0, 2 ** rng.uniform(5, 13)])) if chunk < 8000 else 0
        pairs = chunk * (past + (chunk + 1) / 2)
        decodes, prompt = Segment(n, 1, context - 1), Segment(1, chunk, past)
        pairs_of_two = 2 * chunk * (chunk + 1) / 2

        def seconds(*segments):
            return float(np.asarray(step(m, h, p, *segments, setting=setting).time_s))

        assert table.decode(n, n * (context - 1))[0] == pytest.approx(seconds(decodes), rel=0.002)
        assert table.mixed(0, 0, chunk, pairs, 1) == pytest.approx(seconds(prompt), rel=0.01)
        assert table.mixed(n, n * (context - 1), chunk, pairs, 1) == pytest.approx(seconds(decodes, prompt), rel=0.01)
        assert table.mixed(n, n * (context - 1), 2 * chunk, pairs_of_two, 2) == pytest.approx(
            seconds(decodes, Segment(2, chunk, 0)), rel=0.01
        )


@pytest.fixture(scope="module")
def table():
    setting = Setting(efficiency=Efficiency.default())
    return table_steps(
        model("llama-2-7b"), hardware("a100"), precision("bf16"), setting, most_decodes=64, most_context=4096, most_tokens=2048,
        graphs=(1, 2, 4, 8, 16),
    )  # fmt: skip


def test_a_stretch_is_the_sum_of_its_steps(table):
    held, n = 5 * 100, 5
    while held < 5 * 3000:
        first, more, valid = table.decode(n, held)
        for j in range(1, min(valid, 400)):
            assert table.decode(n, held + n * j)[0] == pytest.approx(first + more * j, rel=1e-9)
        held += n * min(valid, 400)


def test_a_step_runs_at_the_next_captured_size(table):
    padded = table.decode(8, 8 * 100)[0] - table.decodes.at(8, 101)
    assert table.decode(5, 5 * 100)[0] - table.decodes.at(5, 101) == pytest.approx(padded)
    assert table.decode(17, 1700)[0] - table.decodes.at(17, 101) == pytest.approx(table.tokens.at(17) + table.rows.at(17))


def test_a_draft_makes_steps_longer():
    setting = Setting(efficiency=Efficiency.default())
    args = (model("llama-2-7b"), hardware("a100"), precision("bf16"), setting)
    limits = {"most_decodes": 64, "most_context": 4096, "most_tokens": 2048}
    plain, drafted = table_steps(*args, **limits), table_steps(*args, **limits, draft=3, beside_s=0.002)
    assert drafted.decode(64, 64 * 500)[0] > plain.decode(64, 64 * 500)[0] + 0.002


def test_a_linear_law_passes_through_its_table(table):
    law = linear_steps(table, decodes=32, context=1000, chunk=512)
    assert law.decode(32, 32 * 1000)[0] == pytest.approx(table.decode(32, 32 * 1000)[0], rel=0.02)
    assert law.mixed(0, 0, 512, 512 * 513 / 2, 1) == pytest.approx(table.mixed(0, 0, 512, 512 * 513 / 2, 1), rel=0.1)


def test_curves_go_on_beyond_their_ends():
    found = Curve([1.0, 2.0, 4.0], [1.0, 3.0, 4.0])
    assert [found.at(x) for x in (0.0, 1.5, 3.0, 6.0)] == [-1.0, 2.0, 3.5, 5.0]


HEAD = "batch,context,chunk,past,time_s\n"
GOOD = (
    HEAD + "1,100,0,0,0.01\n1,1000,0,0,0.02\n8,100,0,0,0.03\n8,1000,0,0,0.05\n"
    "0,0,256,0,0.04\n0,0,1024,0,0.1\n0,0,256,4096,0.06\n0,0,1024,4096,0.2\n"
)


def test_a_users_table(tmp_path):
    path = tmp_path / "steps.csv"
    path.write_text(GOOD)
    found = file_steps(str(path))
    assert found.decode(1, 99)[0] == 0.01
    assert found.decode(8, 8 * 999)[0] == pytest.approx(0.05)
    assert found.mixed(0, 0, 256, 256 * 257 / 2, 1) == pytest.approx(0.04)
    assert found.mixed(8, 8 * 99, 256, 256 * 257 / 2, 1) == pytest.approx(0.03 + 0.04 - 0.01)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("batch,context,chunk,past\n1,1,0,0\n", "has no column 'time_s'"),
        (GOOD.replace("0.05", "-1"), "time_s, row 4: -1: must be a finite number from 0"),
        (GOOD.replace("0.05", "x"), "time_s, row 4: x: must be a number"),
        (GOOD.replace("8,1000,0,0,0.05\n", ""), "must give each pair of batch and context once"),
        (GOOD + "1,1,1,1,1\n", "either a batch or a chunk"),
        (HEAD, "has a header and no requests"),
        (GOOD + "1,1\n", "has 2 cells under 5 columns"),
    ],
)
def test_a_bad_table_is_refused(tmp_path, text, words):
    path = tmp_path / "steps.csv"
    path.write_text(text)
    with pytest.raises(SpecError, match=words):
        file_steps(str(path))
