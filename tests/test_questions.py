"""Questions that people ask in public, each answered by one command (validation/questions.yaml): the value, and how near it must be."""

import json
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[1] / "tools"))
from questions_page import PAGE, answer, page, questions, ran

QUESTIONS = [q for group in questions().values() for q in group]
CHECKS = [(q["question"], check) for q in QUESTIONS for check in q.get("checks", ())]
OPEN = "--queueing 1 --redundancy none"


def test_every_question_has_an_answer_or_a_reason() -> None:
    for q in QUESTIONS:
        assert {"question", "answer", "source"} <= q.keys()
        assert len({"checks", "property", "not_computed"} & q.keys()) == 1, q["question"]
    assert sum("checks" in q for q in QUESTIONS) >= 40


@pytest.mark.parametrize(("question", "check"), CHECKS, ids=[f"{q[:40]}-{c.get('key', 'words')}-{i}" for i, (q, c) in enumerate(CHECKS)])
def test_answered_by_one_command(question: str, check: dict) -> None:
    if "refused" in check:
        code, _, err = ran(f"{check['command']} --json")
        assert code == 1, question
        assert check["refused"] in err
    elif "said" in check:
        assert check["said"] in ran(f"{check['command']} --json")[1], question
    else:
        found = answer(check["command"], check["key"])
        assert found == (pytest.approx(check["value"], rel=check["bound"]) if check.get("bound") else check["value"]), question


def test_the_page_is_what_the_commands_say() -> None:
    assert PAGE.read_text() == page(), "run python tools/questions_page.py"


def test_tp8_or_two_tp4() -> None:
    """vllm#9658, #12205: two replicas of four take more than one of eight, which has the shorter gaps."""
    command = f"plan -m qwen2.5-72b -g a100 -d bf16 --tp 4,8 --rate 5 --slo ttft.p95=60s,tpot.p95=1s --finalists 0 {OPEN}"
    choices = {c["tp"]: c for c in json.loads(ran(f"{command} --json")[1])["choices"]}
    assert 1.15 < 2 * choices[4]["replica_rate_per_s"] / choices[8]["replica_rate_per_s"] < 1.6  # 2.0 to 1.5 measured
    gaps = {tp: answer(f"estimate -m qwen2.5-72b -g a100 -d bf16 --tp {tp}", "tpot_s") for tp in (4, 8)}
    assert gaps[8] < gaps[4]


def test_above_capacity_the_wait_grows_with_the_test() -> None:
    """vllm#3096: an open loop above capacity tells the length of the test, not of the wait."""
    waits = [answer(f"simulate -m 7b -g a100 --rate 50 -n {n} --isl 512 --osl 128", "ttft_s.mean") for n in (300, 600, 1200)]
    assert waits[2] - waits[1] == pytest.approx(2 * (waits[1] - waits[0]), rel=0.15)


def test_groups_hold_a_latent_cache_once_each() -> None:
    """vllm#51454: attention groups hold a latent cache once each, TP copies it eight times: 156.9 against 20.43 requests."""
    held = {d: answer(f"estimate -m deepseek-v3 -g b200 {d} --isl 100000 --osl 256", "max_sequences") for d in ("--tp 8", "--dp 8 --ep 8")}
    assert 5.5 < held["--dp 8 --ep 8"] / held["--tp 8"] <= 8  # eight times, less the attention weights that each group keeps
