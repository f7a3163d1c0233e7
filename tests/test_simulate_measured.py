"""The simulator against what an engine counted: preemptions and throughput of a closed loop whose cache is too small."""

import csv
from pathlib import Path

import pytest

import inferplan as ip
from inferplan.serving.arrivals import ClosedLoop
from inferplan.serving.lengths import Lengths
from inferplan.serving.protocol import case_steps

ROWS = list(csv.DictReader((Path(__file__).parent / "data" / "preemptions.csv").read_text().splitlines()))


@pytest.fixture(scope="module")
def engine():
    e = ip.estimate(ip.model("qwen2.5-7b"), ip.hardware("b200"), ip.precision("bf16"), input_tokens=1200, output_tokens=6000)
    schedule = ip.Schedule(kv_tokens=299_584, max_num_seqs=1024, max_num_batched_tokens=8192)
    return schedule, case_steps(e, schedule, 7200)


@pytest.mark.parametrize("row", ROWS, ids=lambda r: r["watermark"])
def test_preemptions_by_watermark(engine, row):
    """Within a quarter of the count and 5 % of the rate; the lengths of the prompts themselves were not published."""
    schedule, steps = engine
    asked = ip.Requests.drawn(ClosedLoop(128), Lengths.uniform(800, 1200), Lengths.uniform(4000, 6000), 450, seed=1)
    found = ip.simulate(asked, steps, schedule.but(watermark=float(row["watermark"])))
    assert found.done.all()
    assert found.preempted.sum() == pytest.approx(int(row["preemptions"]), rel=0.25)
    assert asked.output_tokens.sum() / found.finish_s.max() == pytest.approx(float(row["output_tokens_per_s"]), rel=0.05)
