"""The simulator against plain loops that touch every request in every step, against traces worked by hand, and against its invariants."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from inferplan.errors import DoesNotFit, SpecError, Unsupported
from inferplan.serving.arrivals import ClosedLoop, poisson
from inferplan.serving.blocks import PrefixCache
from inferplan.serving.lengths import Lengths
from inferplan.serving.requests import Requests, closed_loop
from inferplan.serving.routing import Router
from inferplan.serving.schedule import CACHING, SCHEDULERS, Schedule
from inferplan.serving.simulate import Prefilling, simulate
from inferplan.serving.speculative import Acceptance
from inferplan.serving.steps import LinearSteps
from oracles.schedulers import LOOPS

ONE = LinearSteps(1.0)


def drawn(seed, name):
    """A small trace and an engine that is short of something: of blocks, of slots or of tokens per step."""
    rng = np.random.default_rng([seed, sum(map(ord, name))])
    n, block = int(rng.integers(1, 25)), 1 if name == "sglang" else int(rng.choice([1, 4, 16]))
    prompt, output = rng.integers(1, 60, n), rng.integers(1, 30, n)
    most = output + rng.integers(0, 10, n)
    when = np.maximum(np.sort(rng.exponential(rng.choice([0.1, 2.0, 10.0]), n).cumsum() - rng.integers(0, 3)), 0) * np.pi / 3
    blocks = int((prompt + most).max() + block + rng.integers(0, 300)) // block + 1
    slots = int(rng.integers(1, 12))
    budget, chunked = max(slots, int(rng.integers(slots, 80))), bool(rng.random() < 0.7) and name not in ("vllm-v0", "tgi-v2")
    budget = budget if chunked else max(budget, int((prompt + output).max()))
    unit = block * int(rng.choice([1, 2])) if name in CACHING and rng.random() < 0.5 else 0
    chains = [shared_chain(rng, int(p) // unit) for p in prompt] if unit else None
    law = [float(x) for x in rng.choice([0.0, 0.1, 0.37, 0.01], 5) * [1, 1, 0.01, 0.1, 0.001]]
    engine = {"block": block, "blocks": blocks, "budget": budget, "slots": slots, "chunked": chunked, "whole": bool(rng.random() < 0.5)}
    engine["watermark"] = int(rng.integers(0, 3)) if name.startswith("vllm") else 0
    engine["interval"] = int(rng.choice([1, 1, 2, 5, 30])) if name == "sglang" else 1
    return (when, prompt, output, most, chains), LinearSteps(law[0] + 0.05, *law[1:]), engine | {"unit": unit}


def shared_chain(rng, units):
    head = int(rng.integers(0, 3)) * 1000
    kept = int(rng.integers(0, units + 1))
    return tuple(range(head, head + kept)) + tuple(10**6 + int(x) for x in rng.integers(10**9, size=units - kept))


def simulated(name, rows, steps, engine):
    when, prompt, output, most, chains = rows
    schedule = Schedule(
        name, kv_tokens=engine["blocks"] * engine["block"], block=engine["block"], max_num_seqs=engine["slots"],
        max_num_batched_tokens=engine["budget"], chunked=engine["chunked"], whole_prompt=engine["whole"],
        watermark=(engine["watermark"] + 0.5) / engine["blocks"], prefix_caching=chains is not None,
        recv_interval=engine["interval"],
    )  # fmt: skip
    asked = Requests.of(when, prompt, output, max_tokens=most, prefixes=chains, hash_tokens=engine["unit"] or 16)
    return simulate(asked, steps, schedule)


@pytest.mark.parametrize("name", LOOPS)
def test_the_same_rows_as_a_loop_over_requests(name):
    preempted = hits = 0
    for seed in range(30):
        rows, steps, engine = drawn(seed, name)
        when, prompt, output, most, chains = rows
        loop = LOOPS[name](
            [*zip(when, prompt.tolist(), output.tolist(), most.tolist(), chains or [()] * len(when), strict=True)], steps, **engine
        )
        want, got = loop.run(), simulated(name, rows, steps, engine)
        assert loop.most_blocks <= engine["blocks"]
        np.testing.assert_allclose(got.begun_s, [r.begun for r in want], rtol=1e-9, atol=1e-9)
        np.testing.assert_allclose(got.first_s, [r.first for r in want], rtol=1e-9)
        np.testing.assert_allclose(got.finish_s, [r.finish for r in want], rtol=1e-9)
        np.testing.assert_allclose(got.itl_max_s, [max(np.diff(r.tokens_at), default=0.0) for r in want], rtol=1e-6, atol=1e-9)
        assert got.preempted.tolist() == [r.preempted for r in want]
        assert got.cached_tokens.tolist() == [r.cached for r in want]
        preempted, hits = preempted + sum(r.preempted for r in want), hits + sum(r.cached > 0 for r in want)
    assert preempted > 0 or name in ("tensorrt-llm", "tgi", "tgi-v2", "sglang")
    assert hits > 0 or name not in CACHING


# Worked by hand: every step takes a second. A row: when it begins, tokens of each request in it, blocks in use once they are booked.
A, B, C, D = range(4)
HAND = {
    "vllm-v1: budget split, block boundary, preemption of the youngest": (
        "vllm-v1", {"block": 4, "blocks": 6, "budget": 8, "slots": 3}, [(0.0, 6, 4), (0.0, 7, 3), (0.0, 3, 2)],
        [
            (0, [(A, 6), (B, 2)], 3),
            (1, [(A, 1), (B, 5), (C, 2)], 5),
            (2, [(A, 1), (B, 1), (C, 1)], 5),
            (3, [(A, 1), (B, 1)], 6),  # A and B each enter their third block; the last one is C's
            (4, [(C, 4)], 1),  # its prompt and the token that it had made
        ],
        {A: (1, 4), B: (2, 4), C: (3, 5)}, {C: 1},
    ),
    "vllm-v0: prompts stall the decodes, preemption": (
        "vllm-v0", {"block": 4, "blocks": 6, "budget": 16, "slots": 4}, [(0.0, 6, 4), (0.0, 7, 3), (0.0, 3, 2), (1.5, 5, 2)],
        [
            (0, [(A, 6), (B, 7), (C, 3)], 5),
            (1, [(A, 1), (B, 1), (C, 1)], 5),
            (2, [(D, 5)], 6),
            (3, [(A, 1), (B, 1)], 5),  # B enters its third block: D goes
            (4, [(D, 6)], 4),
            (5, [(A, 1)], 3),
        ],
        {A: (1, 6), B: (1, 4), C: (1, 2), D: (3, 5)}, {D: 1},
    ),
    "tensorrt-llm: the picture of its guide, 12 tokens a step, the third of three prompts of 5 waits": (
        "tensorrt-llm", {"block": 4, "blocks": 100, "budget": 12, "slots": 4, "chunked": False}, [(0.0, 5, 2)] * 3,
        [(0, [(A, 5), (B, 5)], 4), (1, [(A, 1), (B, 1), (C, 5)], 6), (2, [(C, 1)], 2)],
        {A: (1, 2), B: (1, 2), C: (2, 3)}, {},
    ),
    "tensorrt-llm: no request begins whose end is not sure of its blocks": (
        "tensorrt-llm", {"block": 4, "blocks": 4, "budget": 12, "slots": 4, "chunked": False}, [(0.0, 5, 2)] * 3,
        [(0, [(A, 5), (B, 5)], 4), (1, [(A, 1), (B, 1)], 4), (2, [(C, 5)], 2), (3, [(C, 1)], 2)],
        {A: (1, 2), B: (1, 2), C: (3, 4)}, {},
    ),
    "tensorrt-llm-max-utilization: packs now, pauses the youngest": (
        "tensorrt-llm-max-utilization", {"block": 4, "blocks": 4, "budget": 12, "slots": 4, "chunked": False},
        [(0.0, 4, 6), (0.0, 4, 3), (0.0, 3, 2)],
        [
            (0, [(A, 4), (B, 4), (C, 3)], 3),
            (1, [(A, 1), (B, 1)], 4),  # two new blocks, one free: C goes
            (2, [(A, 1), (B, 1)], 4),
            (3, [(A, 1), (C, 4)], 3),
            (4, [(A, 1)], 2),
            (5, [(A, 1)], 3),
        ],
        {A: (1, 6), B: (1, 3), C: (1, 4)}, {C: 1},
    ),
    "tgi: prompt and declared output are reserved, chunks share steps with decodes": (
        "tgi", {"block": 1, "blocks": 24, "budget": 8, "slots": 4}, [(0.0, 6, 4), (0.0, 7, 3), (0.0, 3, 2)],
        [
            (0, [(A, 6), (B, 2)], 8),
            (1, [(A, 1), (B, 5)], 14),
            (2, [(A, 1), (B, 1)], 16),
            (3, [(A, 1), (B, 1)], 18),
            (4, [(C, 3)], 3),  # 10 + 10 + 5 tokens were one too many
            (5, [(C, 1)], 4),
        ],
        {A: (1, 4), B: (2, 4), C: (5, 6)}, {},
    ),
    "tgi-v2: one request waits until the decodes have made three steps": (
        "tgi-v2", {"block": 1, "blocks": 99, "budget": 8, "slots": 4, "chunked": False, "served_ratio": 1.0, "patience": 3},
        [(0.0, 4, 6), (0.0, 4, 6), (1.5, 3, 2)],
        [
            (0, [(A, 4), (B, 4)], 8), (1, [(A, 1), (B, 1)], 10), (2, [(A, 1), (B, 1)], 12), (3, [(C, 3)], 13 + 2),
            (4, [(A, 1), (B, 1), (C, 1)], 18), (5, [(A, 1), (B, 1)], 16), (6, [(A, 1), (B, 1)], 18),
        ],
        {A: (1, 7), B: (1, 7), C: (4, 5)}, {},
    ),
    "sglang: prompts first and in chunks, decodes wait": (
        "sglang", {"block": 1, "blocks": 20, "budget": 4, "slots": 9}, [(0.0, 6, 3), (0.0, 5, 3)],
        [(0, [(A, 4)], 4), (1, [(A, 2), (B, 2)], 8), (2, [(B, 3)], 11), (3, [(A, 1), (B, 1)], 13), (4, [(A, 1), (B, 1)], 15)],
        {A: (2, 5), B: (3, 5)}, {},
    ),
    "sglang: with a look every three decode steps B is seen after the third, C, there while B has its prompt, at once": (
        "sglang", {"block": 1, "blocks": 99, "budget": 8, "slots": 9, "interval": 3}, [(0.0, 4, 9), (1.5, 3, 4), (4.5, 2, 2)],
        [
            (0, [(A, 4)], 4), (1, [(A, 1)], 5), (2, [(A, 1)], 6), (3, [(A, 1)], 7), (4, [(B, 3)], 10), (5, [(C, 2)], 12),
            (6, [(A, 1), (B, 1), (C, 1)], 15), (7, [(A, 1), (B, 1)], 14), (8, [(A, 1), (B, 1)], 16), (9, [(A, 1)], 11), (10, [(A, 1)], 12),
        ],
        {A: (1, 11), B: (5, 9), C: (6, 7)}, {},
    ),
    "sglang: who has made least is retracted, and waits until its whole answer finds room": (
        "sglang", {"block": 1, "blocks": 14, "budget": 9, "slots": 9, "ratio": 0.0, "least": 0.0, "decay": 0.0, "headroom": 1},
        [(0.0, 4, 8), (1.5, 2, 6)],
        [
            (0, [(A, 4)], 4), (1, [(A, 1)], 5), (2, [(B, 2)], 7), (3, [(A, 1), (B, 1)], 9), (4, [(A, 1), (B, 1)], 11),
            (5, [(A, 1), (B, 1)], 13),
            (6, [(A, 1)], 9),  # two tokens to store, room for one; B had made 4 and A 5
            (7, [(A, 1)], 10), (8, [(A, 1)], 11), (9, [(B, 6)], 6), (10, [(B, 1)], 7),
        ],
        {A: (1, 9), B: (3, 11)}, {B: 1},
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", HAND)
def test_worked_by_hand(case):
    name, engine, rows, steps, times, preempted = HAND[case]
    loop = LOOPS[name]([(*row, row[2]) for row in rows], ONE, **engine)
    loop.run()
    assert [(t, batch, used) for t, batch, used in loop.log] == steps
    options = {
        "served_ratio": "served_ratio",
        "patience": "patience",
        "ratio": "foreseen",
        "least": "foreseen_least",
        "headroom": "headroom",
        "interval": "recv_interval",
    }
    schedule = Schedule(
        name, kv_tokens=engine["block"] * engine["blocks"], block=engine["block"], max_num_batched_tokens=engine["budget"],
        max_num_seqs=engine["slots"], chunked=engine.get("chunked", True), **{options[k]: v for k, v in engine.items() if k in options},
    )  # fmt: skip
    found = simulate(Requests.of(*zip(*rows, strict=True)), ONE, schedule)
    for i, (first, finish) in times.items():
        assert (found.first_s[i], found.finish_s[i]) == (first, finish), i
        assert found.preempted[i] == preempted.get(i, 0)


def test_a_prefix_is_found_again_but_for_its_last_block():
    schedule = Schedule(kv_tokens=24, block=4, prefix_caching=True)
    rows = Requests.of([0.0, 20.0, 40.0], [9, 9, 8], [1, 1, 1], prefixes=[(1, 2), (1, 2), (1, 2)], hash_tokens=4)
    found = simulate(rows, LinearSteps(0.0, per_prompt_token_s=1.0), schedule)
    assert found.cached_tokens.tolist() == [0, 8, 4]
    assert found.e2e_s.tolist() == [9.0, 1.0, 4.0]


def test_sglang_counts_blocks_that_only_the_cache_holds():
    """The prompt of the third fits beside the first two only while what it would find in cache is not counted: it waits."""
    chain = tuple(range(4))
    asked = Requests.of([0.0, 10.0, 10.0], [9, 9, 9], [1, 6, 6], prefixes=[chain, (10, 11, 12, 13), chain], hash_tokens=2)
    schedule = Schedule("sglang", kv_tokens=25, block=2, prefix_caching=True, foreseen=1.0, foreseen_least=1.0)
    found = simulate(asked, ONE, schedule)
    assert found.cached_tokens.tolist() == [0, 0, 8]
    assert found.begun_s.tolist() == [0.0, 10.0, 16.0]


@pytest.mark.parametrize("seed", range(6))
def test_sglang_with_shared_prefixes_never_runs_out_of_blocks(seed):
    rng = np.random.default_rng(seed)
    prompt, output = rng.integers(50, 900, 60), rng.integers(1, 300, 60)
    chains = [shared_chain(rng, int(p) // 16) for p in prompt]
    asked = Requests.of(np.sort(rng.uniform(0, 60, 60)), prompt, output, prefixes=chains, hash_tokens=16)
    schedule = Schedule("sglang", kv_tokens=1600, prefix_caching=True, foreseen_least=0.05, max_num_batched_tokens=512)
    assert simulate(asked, LinearSteps(0.01), schedule).done.all()


def test_static_and_dynamic_batches_by_hand():
    rows = Requests.of([0.0, 0.0, 0.0], [4, 6, 2], [3, 1, 2])
    found = simulate(rows, ONE, Schedule("static", max_num_seqs=2))
    assert found.finish_s.tolist() == [3.0, 3.0, 5.0], "answers come together"
    assert found.last_s.tolist() == [3.0, 1.0, 5.0]
    assert found.slot_steps == 2 * 3 + 1 * 2
    late = Requests.of([0.0, 10.0], [4, 4], [2, 2])
    assert simulate(late, ONE, Schedule("static", max_num_seqs=2)).finish_s.tolist() == [12.0, 12.0], "waits until it is full"
    assert simulate(late, ONE, Schedule("dynamic", max_num_seqs=2)).finish_s.tolist() == [2.0, 12.0]


def test_a_padded_batch_must_find_room():
    rows = Requests.of([0.0] * 3, [4, 6, 2], [2, 2, 2])
    found = simulate(rows, ONE, Schedule("static", max_num_seqs=3, kv_tokens=16))
    assert found.begun_s.tolist() == [0.0, 0.0, 2.0], "three times 6 + 2 tokens do not fit"


def test_prefix_cache_against_a_list():
    """Requests one after the other: every block touched or inserted, the least recent one evicted."""
    rng = np.random.default_rng(5)
    for blocks in (3, 10, 40):
        cache, order = PrefixCache(blocks, 1), []
        hits = want = 0
        for _ in range(400):
            length, head = int(rng.integers(1, 4)), int(rng.integers(0, 12))
            chain = [head * 10 + j for j in range(length)]
            found = cache.hits(chain, length)
            cache.hold(chain[:found])
            rest = chain[found:]
            cache.settle(cache.private + len(rest))
            for unit in rest:
                assert cache.share(unit)
            cache.give(0, chain)
            expected = next((j for j, unit in enumerate(chain) if unit not in order), length)
            for unit in chain[expected:]:
                if len(order) == blocks:
                    order.remove(next(u for u in order if u not in chain[:expected]))
                order.append(unit)
            for unit in reversed(chain):  # freed from the last to the first
                order.remove(unit)
                order.append(unit)
            hits, want = hits + found, want + expected
            assert found == expected
            assert cache.idle.keys() - {k for k in cache.idle if k < 0} == set(order)
        assert hits == want > 0


requests = st.integers(0, 10**6).map(
    lambda seed: Requests.drawn(poisson(0.5 + seed % 7), Lengths.uniform(1, 80), Lengths.exponential(12, 60), 40, seed=seed)
)


@settings(max_examples=25, deadline=None)
@given(requests, st.sampled_from(sorted(SCHEDULERS)), st.integers(150, 600), st.integers(1, 3))
def test_nothing_is_lost_and_time_runs_forward(asked, name, tokens, replicas):
    schedule = Schedule(name, kv_tokens=tokens, max_num_seqs=12, max_num_batched_tokens=160)
    steps = LinearSteps(0.02, 0.001, 1e-5, 2e-4)
    found = simulate(asked, steps, schedule, replicas=replicas, series=True)
    assert found.done.all()
    assert np.all(found.queue_s >= 0)
    assert np.all(found.first_s > found.begun_s)
    assert np.all(found.last_s >= found.first_s)
    assert np.all(found.finish_s >= found.last_s)
    assert np.all(found.itl_max_s <= found.last_s - found.first_s + 1e-9)
    gaps = found.requests.output_tokens - 1
    assert np.all(found.itl_max_s * gaps >= found.last_s - found.first_s - 1e-9), "no gap is longer than the longest"
    for s in found.series:
        assert np.all(np.diff(s.t_s) >= 0)
        assert s.kv_tokens.max() <= tokens
        assert s.running.max() <= 12
    again = simulate(asked, steps, schedule, replicas=replicas)
    assert all(np.array_equal(a, b, equal_nan=True) for a, b in zip(found.columns.values(), again.columns.values(), strict=True))


@pytest.mark.parametrize("routing", ["round-robin", "least-requests"])
def test_one_replica_of_many_is_one_engine(routing):
    """Replicas run side by side give what an engine gives alone with the requests that were routed to it."""
    asked = Requests.drawn(poisson(3.0), Lengths.uniform(10, 200), Lengths.exponential(30, 200), 300, seed=2)
    steps, schedule = LinearSteps(0.02, 0.001, 1e-5, 2e-4), Schedule(kv_tokens=1200, max_num_seqs=9)
    both = simulate(asked, steps, schedule, replicas=3, routing=routing)
    for r in range(3):
        rows = np.flatnonzero(both.replica == r)
        alone = simulate(asked.take(rows), steps, schedule)
        np.testing.assert_allclose(both.finish_s[rows], alone.finish_s, rtol=1e-9)
        np.testing.assert_allclose(both.itl_max_s[rows], alone.itl_max_s, rtol=1e-6)
        assert both.preempted[rows].tolist() == alone.preempted.tolist()


def test_the_least_loaded_replica_is_chosen():
    asked = Requests.of([0.0, 0.1, 0.2, 5.0], [10, 10, 10, 10], [50, 1, 1, 1])
    found = simulate(asked, ONE, Schedule(), replicas=2, routing="least-requests")
    assert found.replica.tolist() == [0, 1, 0, 1]


def test_prefixes_lead_to_their_replica():
    asked = Requests.of(np.arange(6.0), [40] * 6, [2] * 6, prefixes=[(1, 2), (3, 4), (1, 5), (3, 6), (3, 7), (1, 8)])
    found = simulate(asked, LinearSteps(0.1), Schedule(prefix_caching=True), replicas=2, routing="prefix-aware")
    assert [found.replica[0]] * 2 == [found.replica[2], found.replica[5]]
    assert found.cached_tokens.tolist()[2] == 16
    with pytest.raises(SpecError, match="needs requests with prefixes"):
        simulate(Requests.of([0.0], [4], [1]), ONE, replicas=2, routing="prefix-aware")
    with pytest.raises(SpecError, match="there are round-robin"):
        Router("random", 2, None)


def test_a_closed_loop_keeps_its_clients_busy():
    asked = Requests.drawn(ClosedLoop(3), Lengths.fixed(8), Lengths.uniform(2, 9), 30, seed=1)
    for replicas in (1, 2):
        found = simulate(asked, ONE, Schedule(), replicas=replicas)
        begins, ends = np.sort(found.requests.arrival_s), np.sort(found.finish_s)
        assert begins[3:].tolist() == ends[:27].tolist(), "each end is the next one's beginning"
        assert found.done.all()
    thinking = simulate(Requests.drawn(ClosedLoop(3, 2.5), Lengths.fixed(8), Lengths.uniform(2, 9), 30, seed=1), ONE)
    np.testing.assert_allclose(np.sort(thinking.requests.arrival_s)[3:], np.sort(thinking.finish_s)[:27] + 2.5)


def test_the_benchmark_protocol():
    asked = closed_loop(8, 1024, 512)
    assert (len(asked), asked.clients) == (80, 8)
    assert 819 <= asked.input_tokens.min() <= asked.input_tokens.max() <= 1024
    assert 409 <= asked.output_tokens.min() <= asked.output_tokens.max() <= 512


def test_caches_are_handed_over():
    asked = Requests.of([0.0, 0.0], [10, 20], [3, 1])
    front = Prefilling(Schedule(), LinearSteps(0.0, per_prompt_token_s=0.1), transfer_s=1.0, per_token_s=0.05)
    found = simulate(asked, ONE, Schedule(), prefilling=front)
    assert found.first_s.tolist() == pytest.approx([3.0, 3.0])  # both prompts in one step
    assert found.finish_s.tolist() == pytest.approx([3.0 + 1.5 + 2.0, 3.0])
    assert found.itl_max_s.tolist() == pytest.approx([2.5, 0.0])
    assert found.begun_s.tolist() == [0.0, 0.0]


def test_handed_over_requests_wait_for_blocks_and_survive_preemption():
    asked = Requests.drawn(poisson(4.0), Lengths.uniform(10, 60), Lengths.exponential(20, 60), 120, seed=4)
    front = Prefilling(Schedule(), LinearSteps(0.01, per_prompt_token_s=1e-4), replicas=2, transfer_s=0.01)
    found = simulate(asked, LinearSteps(0.02, 0.001), Schedule(kv_tokens=160, max_num_seqs=20), replicas=1, prefilling=front, series=True)
    assert found.done.all()
    assert found.preempted.sum() > 0
    assert np.all(found.finish_s > found.first_s - 1e-12)
    assert max(s.kv_tokens.max() for s in found.series) <= 160
    loop = Requests.drawn(ClosedLoop(4), Lengths.uniform(10, 60), Lengths.exponential(20, 60), 60, seed=4)
    closed = simulate(loop, LinearSteps(0.02, 0.001), Schedule(), prefilling=front)
    np.testing.assert_allclose(np.sort(closed.requests.arrival_s)[4:], np.sort(closed.finish_s)[:56])


def test_speculation_takes_fewer_steps():
    law = Acceptance(3, 0.6)
    rounds = law.rounds(np.full(20_000, 100), np.random.default_rng(0))
    assert rounds.mean() == pytest.approx(100 / law.tokens_per_step, rel=0.02)
    sure = simulate(Requests.of([0.0], [10], [41]), ONE, Schedule(draft_tokens=3), acceptance=Acceptance(3, 1.0))
    assert sure.finish_s.tolist() == [1.0 + 10.0]
    never = simulate(Requests.of([0.0], [10], [41]), ONE, Schedule(draft_tokens=3), acceptance=Acceptance(3, 0.0))
    assert never.finish_s.tolist() == [1.0 + 40.0]
    asked = Requests.drawn(poisson(4.0), Lengths.uniform(10, 60), Lengths.exponential(20, 60), 200, seed=4)
    tight = simulate(asked, LinearSteps(0.05, 0.002), Schedule(kv_tokens=200, draft_tokens=3), acceptance=law, series=True)
    assert tight.done.all()
    assert tight.preempted.sum() > 0
    assert tight.series[0].kv_tokens.max() <= 200 + 1e-6


def test_an_interrupt_keeps_what_is_served():
    asked = Requests.drawn(poisson(50.0), Lengths.uniform(10, 60), Lengths.exponential(20, 60), 20_000, seed=4)

    def stop(done, total):
        if done > 3000:
            raise KeyboardInterrupt

    found = simulate(asked, LinearSteps(0.01), Schedule(), progress=stop)
    assert found.partial
    assert 3000 <= found.done.sum() < 20_000
    assert np.isnan(found.e2e_s[~found.done]).all()
    whole = simulate(asked, LinearSteps(0.01), Schedule())
    np.testing.assert_array_equal(found.finish_s[found.done], whole.finish_s[found.done])


def test_progress_changes_nothing_and_ends_at_all():
    asked = Requests.drawn(poisson(50.0), Lengths.uniform(10, 60), Lengths.exponential(20, 60), 9000, seed=4)
    told = []
    simulate(asked, LinearSteps(0.01), Schedule(), progress=lambda done, total: told.append((done, total)))
    assert told == sorted(told)
    assert all(0 <= done <= 9000 == total for done, total in told)
    assert told


@pytest.mark.parametrize(
    ("make", "kind", "words"),
    [
        (lambda: simulate(Requests.of([0.0], [100], [10]), ONE, Schedule(kv_tokens=64)), DoesNotFit, "takes 110 tokens of cache"),
        (
            lambda: simulate(Requests.of([0.0], [100], [10]), ONE, Schedule(chunked=False, max_num_batched_tokens=50)),
            DoesNotFit,
            "must fit a step",
        ),
        (lambda: Schedule("orca"), SpecError, "is no scheduler; there are vllm-v1"),
        (lambda: Schedule(kv_tokens=0), SpecError, "kv_tokens: 0: must be a whole number from 1"),
        (lambda: Schedule(watermark=1.0), SpecError, "must be a share"),
        (lambda: Schedule("tgi", prefix_caching=True), SpecError, "is simulated for sglang"),
        (lambda: Requests.of([0.0, np.nan], [1, 1], [1, 1]), SpecError, "arrival_s, row 2: nan: must be a finite"),
        (lambda: Requests.of([0.0, 1.0], [1, 0], [1, 1]), SpecError, "input_tokens, row 2: 0: must be a whole number"),
        (lambda: Requests.of([0.0, 1.0], [1, 1, 1], [1, 1]), SpecError, "must be 2 numbers"),
        (lambda: simulate(Requests.of([0.0], [1], [1]), ONE, replicas=0), SpecError, "replicas: 0"),
        (lambda: simulate({"arrival_s": [0.0]}, ONE), SpecError, "lacks the column 'input_tokens'"),
        (lambda: simulate(Requests.of([0.0], [1], [1]), ONE, Schedule(prefix_caching=True)), SpecError, "have no prefixes"),
        (
            lambda: simulate(Requests.of([0.0], [1], [1]), ONE, Schedule("static"), prefilling=Prefilling(Schedule(), ONE)),
            Unsupported,
            "continuous batching",
        ),
        (lambda: LinearSteps(-1.0), SpecError, "base_s"),
        (lambda: Acceptance(3, 1.5), SpecError, "probability"),
    ],
)
def test_what_cannot_be_is_refused(make, kind, words):
    with pytest.raises(kind, match=words):
        make()


def test_a_table_in_and_a_table_out():
    import pandas as pd

    frame = pd.DataFrame({"arrival_s": [0.0, 0.5], "input_tokens": [10, 20], "output_tokens": [3, 1]})
    found = simulate(frame, ONE).frame()
    assert found["e2e_s"].tolist() == [3.0, 1.5]
    assert np.isnan(found["tpot_s"][1])
