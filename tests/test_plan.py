"""Plans against arithmetic by hand, against brute force over simulations, and against goals that cannot be reached."""

import json
import math
from pathlib import Path

import jsonschema
import numpy as np
import pytest

import inferplan as ip
from inferplan.cli.app import main
from inferplan.errors import DoesNotFit, NoFeasiblePlan, NotFound, SpecError
from inferplan.planner.candidate import Candidate, kinds
from inferplan.planner.cost import Bill, Offer, break_even_per_s, cheapest, drawn_w, listed_offers, owned_usd_per_h, usd_per_million
from inferplan.planner.demand import Demand, peak_over_mean, user_rate_per_s, windowed_rates_per_s
from inferplan.planner.fleet import fleet_of, profile_replicas, replicas_needed, thresholds_per_s
from inferplan.planner.goal import Goal
from inferplan.planner.plan import plan
from inferplan.planner.proof import Bench, Tried, t_quantile
from inferplan.planner.redundancy import Redundancy, availability, enough_probability, units_for_probability, units_for_zone_loss
from inferplan.planner.replica import replica
from inferplan.planner.screening import screened
from inferplan.planner.targets import Targets
from inferplan.report.plan import plan_record
from inferplan.serving.simulate import simulate

ROOT = Path(__file__).parents[1]
NONE = Redundancy.parse("none")


# by hand


@pytest.mark.parametrize(
    ("rate", "each", "queueing", "expected"),
    [(240, 120, 0.65, 4), (960, 120, 0.65, 13), (5, 1, 1, 5), (6.5, 1, 1, 7), (20, 2, 1, 10), (20, 3, 1, 7), (3, 1, 1, 3), (0.1, 5, 1, 1)],
)
def test_replicas_by_hand(rate, each, queueing, expected):
    assert int(replicas_needed(rate, each, queueing)) == expected


def test_replicas_are_not_counted_twice_by_rounding():
    n = np.arange(1, 400)
    assert np.array_equal(replicas_needed(n * 0.1 * 0.85, 0.1, 0.85), n)


@pytest.mark.parametrize(
    ("needed", "up", "table"),
    [(8, availability(0.0065, 2), {8: 0.90183, 9: 0.99442, 10: 0.99976}), (8, 0.95, {8: 0.66342, 9: 0.92879, 10: 0.98850}),
     (25, availability(0.0065, 2), {26: 0.95634}), (25, 0.95, {26: 0.62413})],
)  # fmt: skip
def test_enough_are_up(needed, up, table):
    for units, chance in table.items():
        assert enough_probability(units, needed, up) == pytest.approx(chance, abs=6e-6)
        exact = sum(math.comb(units, k) * up**k * (1 - up) ** (units - k) for k in range(needed, units + 1))
        assert enough_probability(units, needed, up) == pytest.approx(exact, rel=1e-9)


def test_fewest_units_for_a_probability():
    assert availability(0.0065, 2) == pytest.approx(0.98717, abs=5e-6)
    for target in (0.9, 0.99, 0.999, 0.99999):
        units = units_for_probability(25, 0.95, target)
        assert enough_probability(units, 25, 0.95) >= target > enough_probability(units - 1, 25, 0.95)


@pytest.mark.parametrize(("needed", "zones", "expected"), [(8, 2, 16), (8, 3, 12), (7, 3, 11), (9, 4, 12), (1, 3, 2)])
def test_loss_of_a_zone(needed, zones, expected):
    assert int(units_for_zone_loss(needed, zones)) == expected
    assert expected - math.ceil(expected / zones) >= needed > (expected - 1) - math.ceil((expected - 1) / zones)


def test_users_and_windows():
    assert user_rate_per_s(5000, 0.2, 0.4) == pytest.approx(6.667, abs=1e-3)
    assert peak_over_mean([1.0] * 23 + [5.0]) == pytest.approx(5 / (28 / 24))
    assert windowed_rates_per_s(np.repeat([0.0, 61.0, 125.0], [30, 90, 1])).tolist() == [0.5, 1.5]


def test_growth_reaches_a_rate_in_its_month():
    d = Demand(10.0, 20.0, growth_per_month=0.05, months=12, buffer=0.1)
    assert d.planned_peak_per_s == pytest.approx(20 * 1.05**12 * 1.1)
    month = d.month_of(30.0)
    assert month is not None
    assert 20 * 1.1 * 1.05**month == pytest.approx(30.0)


def test_whole_nodes_are_billed():
    node = Offer("h100", "x", "on-demand", 3.0, 8)
    assert [node.billed_gpus(r, g) for r, g in ((1, 1), (3, 4), (4, 2), (1, 16), (2, 8), (5, 3))] == [8, 16, 8, 16, 16, 24]
    assert cheapest([node, Offer("h100", "y", "on-demand", 4.0)], 1, 1) == Offer("h100", "y", "on-demand", 4.0)
    assert cheapest([node, Offer("h100", "y", "on-demand", 4.0)], 8, 1) == node


def test_a_node_that_fails_takes_its_replicas_along():
    node = Offer("h100", "x", "on-demand", 3.0, 8)
    found = fleet_of(Demand(5, 5), 1.0, 4, queueing=1.0, rule=Redundancy.parse("n+1"), offer=node)
    assert (found.at_peak, found.units, found.kept_units, found.replicas, found.billed_gpus) == (5, 3, 4, 7, 32)


def test_money_by_hand():
    assert owned_usd_per_h(35_040, 4, 1000, 1.5, 0.1) == pytest.approx(1.0 + 0.15)
    assert usd_per_million(36.0, 10.0, 1000) == pytest.approx(1.0)
    b = Bill(36.0, 10.0, 900.0, 100.0, 0.25, 1000.0, 730.0, 0.4)
    assert b.usd_per_month == 26_280
    assert b.usd_per_million_blended_tokens == pytest.approx(1.0)
    assert b.usd_per_million_tokens_all_on_output == pytest.approx(10.0)
    whole = b.usd_per_million_input_tokens * 900 + b.usd_per_million_output_tokens * 100
    assert whole == pytest.approx(b.usd_per_million_blended_tokens * 1000)
    assert (b.kwh_per_month, b.kg_co2_per_month) == (730.0, 292.0)
    assert b.joules_per_output_token == pytest.approx(1.0)
    assert drawn_w(700, 1.0, 0.3, 1.0) == pytest.approx(700)
    even = break_even_per_s(26_280, 1.0, 1000)
    assert usd_per_million(36.0, even, 1000) == pytest.approx(1.0)


def test_offers_come_from_the_list_with_their_source():
    part = ip.hardware("h100")
    found = listed_offers(part, ["on-demand", "spot"])
    assert {o.kind for o in found} == {"on-demand", "spot"}
    assert all(o.source and o.usd_per_gpu_h > 0 for o in found)
    assert listed_offers(part, ["on-demand"], ["nobody"]) == []


def test_thresholds_and_profile():
    assert thresholds_per_s(120.0, 0.65, 13, before=0, after=0) == [(13, 1014.0)]
    d = Demand(100.0, 200.0, profile=(0.5, 0.5, 1.0, 2.0))
    assert profile_replicas(d, 50.0, 1.0).tolist() == [1, 1, 2, 4]


def test_intervals_and_verdicts():
    for freedom, exact in ((4, 2.776), (9, 2.262), (29, 2.045)):
        assert t_quantile(0.95, freedom) == pytest.approx(exact, rel=0.01)
    targets = Targets.parse("ttft.p95=1s")

    def verdict(*values):
        return Tried(1.0, targets, np.array(values)[:, None], np.ones(len(values)), 0.95).verdict

    assert verdict(0.5, 0.6, 0.55) == "meets"
    assert verdict(1.5, 1.6, 1.55) == "misses"
    assert verdict(0.9, 1.1, 1.0) == "undecided"
    assert verdict(np.inf, 1.0, 1.0) == "misses"
    share = Targets.parse("ttft=1s,share=0.9")
    assert Tried(1.0, share, np.array([[0.97], [0.98], [0.96]]), np.ones(3), 0.95).verdict == "meets"
    assert Tried(1.0, share, np.array([[0.7], [0.71], [0.7]]), np.ones(3), 0.95).verdict == "misses"


# replicas


def goal(**changed):
    told = {
        "model": "llama-3.1-8b", "traffic": {"rate_per_s": 20.0, "peak_factor": 2.0}, "slo": "ttft.p95=300ms,tpot.p95=20ms",
        "search": {"gpus": ["h100", "l40s"], "dtype": ["fp8"], "max_replica_gpus": 2},
        "money": {"prices": {"h100": 2.5, "l40s": 1.0}}, "proof": {"requests": 300, "seeds": 3, "most_seeds": 4},
    }  # fmt: skip
    return Goal.from_mapping({**told, **changed})


def candidates(asked):
    _, work = asked.asked()
    return [(c, work) for k, _, _ in kinds(asked) if k is not None for c in screened(k, k.splits(asked), work, asked.targets)]


@pytest.mark.parametrize(
    ("model", "lengths", "slo"),
    [
        ("llama-3.1-8b", {"input": "1024", "output": "256"}, "ttft.p95=300ms,tpot.p95=20ms"),
        ("gpt-oss-120b", {"input": "128", "output": "exponential:800,max=3000"}, "tpot.p50=25ms,e2e.p90=60s"),
        ("qwen3-30b-a3b", {"input": "lognormal:1155,4083,max=8192", "output": "lognormal:211,451,max=1024"}, "ttft.p99=2s,tpot.p90=30ms"),
    ],
)
def test_bounds_are_above_what_closed_form_finds(model, lengths, slo):
    asked = goal(model=model, lengths=lengths, slo=slo)
    for s, work in candidates(asked):
        try:
            rate = replica(s.candidate, work).largest_rate_per_s(asked.targets)
        except DoesNotFit:
            rate = 0.0
        assert rate <= s.most_per_s, s.candidate.name
        if s.most_per_s == 0:
            assert rate == 0


def test_the_largest_rate_is_where_a_limit_is_reached():
    asked = goal()
    _, work = asked.asked()
    kind = next(k for k, _, _ in kinds(asked) if k is not None)
    found = replica(Candidate(kind, kind.splits(asked)[0]), work)
    rate = found.largest_rate_per_s(asked.targets)

    def kept(at):
        return all(float(found.value_s(found.at(np.array([at])), t)[0]) <= t.limit_s for t in asked.targets.limits)

    assert kept(rate)
    assert not kept(rate * 1.01)
    assert found.slower(1.2, 1.2).largest_rate_per_s(asked.targets) < rate
    assert found.capped(8).times.most == 8


def test_closed_form_is_near_simulation():
    asked = goal()
    _, work = asked.asked()
    kind = next(k for k, _, _ in kinds(asked) if k is not None)
    found = replica(Candidate(kind, kind.splits(asked)[0]), work)
    good, bad = Bench.of(found, asked.targets, asked.proof).largest_rate_per_s(found.largest_rate_per_s(asked.targets))
    assert good < bad <= good * 1.021
    assert good == pytest.approx(found.largest_rate_per_s(asked.targets), rel=0.2)


def test_a_proof_counts_the_front_end_once():
    asked = goal(slo="ttft.mean=300ms,e2e.mean=20s,tpot.mean=20ms")
    _, work = asked.asked()
    kind = next(k for k, _, _ in kinds(asked) if k is not None)
    found = replica(Candidate(kind, kind.splits(asked)[0]), work)
    bench = Bench.of(found, asked.targets, asked.proof)
    requests, kept = bench.requests(2.0, 0)
    served = simulate(requests, bench.steps, bench.schedule)
    each = 32 * 362e-6 + work.input.mean * 5.6e-6
    assert found.front_s == pytest.approx(each, rel=1e-9)
    steps = [float(times[kept].mean()) for times in (served.ttft_s, served.e2e_s, served.tpot_s)]
    values, _ = bench.read(served, kept)
    assert values.tolist() == pytest.approx([steps[0] + each, steps[1] + each, steps[2]], rel=1e-9)


@pytest.mark.parametrize(
    ("rate", "slo"),
    [pytest.param(12.0, "ttft.p95=300ms,tpot.p95=20ms", marks=pytest.mark.slow), (3.0, "ttft.p90=250ms,tpot.p90=12ms")],
)
def test_the_plan_is_the_best_of_brute_force_over_simulations(rate, slo):
    asked = goal(traffic={"rate_per_s": rate, "peak_factor": 2.0}, slo=slo)
    demand, work = asked.asked()
    rule, q = asked.safety.rule, asked.safety.queueing
    prices = {"h100-sxm5-80gb": 2.5, "l40s": 1.0}
    costs = {}
    for s, _ in candidates(asked):
        if s.reason or s.group:
            continue
        bench = Bench.of(replica(s.candidate, work), asked.targets, asked.proof)
        for n in range(1, 31):
            if bench.at(demand.planned_peak_per_s / (n * q)).verdict == "meets":
                costs[s.candidate.name] = rule.units(n) * s.candidate.gpus * prices[s.candidate.kind.hardware.name]
                break
    found = plan(asked)
    assert found.best.fleet.usd_per_h == pytest.approx(min(costs.values()))
    assert found.best.verdict == "meets"


def test_more_traffic_or_harder_limits_never_cost_less():
    search = {"gpus": ["h100"], "dtype": ["fp8"], "tp": [1]}
    proof = {"finalists": 0}
    by_rate = [plan(goal(traffic={"rate_per_s": r}, search=search, proof=proof)).best.fleet.usd_per_h for r in (5.0, 20.0, 80.0)]
    assert by_rate == sorted(by_rate)
    limits = ("ttft.p95=2s,tpot.p95=50ms", "ttft.p95=300ms,tpot.p95=20ms", "ttft.p95=300ms,tpot.p95=10ms")
    by_limit = [plan(goal(slo=s, search=search, proof=proof)).best.fleet.usd_per_h for s in limits]
    assert by_limit == sorted(by_limit)


def test_what_a_plan_tells():
    found = plan(goal())
    best = found.best
    assert [c.fleet.usd_per_h for c in found.choices] == sorted(c.fleet.usd_per_h for c in found.choices)
    assert best.fleet.replicas == best.fleet.at_peak + 1
    assert all(late.margin_s > 0 for late in best.latencies)
    assert {s.input for s in found.swings} >= {"traffic", "peak", "price", "times", "output", "input"}
    more = next(s for s in found.swings if s.input == "traffic" and s.factor > 1)
    assert more.fleet is not None
    assert more.fleet.at_peak >= best.fleet.at_peak
    assert found.candidates == len(found.choices) + sum(f.count for f in found.fallen if f.group != "other limits or drafts: no gain")
    frame = found.frame()
    assert list(frame["verdict"])[0] == "meets"
    assert frame.loc[0, "usd_per_month"] == pytest.approx(best.fleet.usd_per_h * 730)
    record = json.loads(json.dumps(plan_record(found)))
    jsonschema.validate(record, json.loads((ROOT / "docs/schema/plan-1.json").read_text()))


def test_pools_and_drafts_are_told():
    draft = {"name": "eagle3", "tokens": 3, "accept": 0.7}
    search = {"gpus": ["h100"], "dtype": ["bf16"], "tp": [1], "disaggregated": True, "draft": draft}
    found = plan(goal(search=search, slo="ttft.p95=400ms,tpot.p95=9ms", traffic={"rate_per_s": 20.0}))
    assert found.best.replica is not None
    assert found.best.replica.draft is not None
    assert any(s.input == "accept" for s in found.swings)
    apart = plan(goal(search={**search, "draft": None}, slo="ttft.p95=400ms,tpot.p95=12ms", traffic={"rate_per_s": 20.0}))
    told = [c.name for c in apart.choices] + [f.example for f in apart.fallen]
    assert any("pools" in name or "for prefill" in name for name in told)


# what cannot be


def test_no_number_of_replicas_mends_an_idle_miss():
    with pytest.raises(NoFeasiblePlan, match="no number of replicas mends it.*times as long would do"):
        plan(goal(slo="ttft.p95=1ms"))


def test_too_few_devices_names_how_many_would_do():
    with pytest.raises(NoFeasiblePlan, match=r"--max-gpus \d+") as caught:
        plan(goal(search={"gpus": ["l40s"], "max_gpus": 2, "dtype": ["fp8"], "tp": [1]}))
    need = int(str(caught.value).split("--max-gpus ")[1].rstrip(")"))
    found = plan(goal(search={"gpus": ["l40s"], "dtype": ["fp8"], "tp": [1]}))
    assert need <= found.best.fleet.gpus  # at least: bounds are above what is found later


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"slo": "ttft=fast"}, "slo"), ({"slo": "itl.p95=1s"}, "is no limit"), ({"traffic": {}}, "give one of"),
        ({"traffic": {"rate_per_s": -1.0}}, "traffic.rate_per_s"), ({"traffic": {"rate_per_s": 1.0, "peak_per_s": 0.5}}, "below the mean"),
        ({"traffic": {"rate_per_s": 1.0, "users": 3.0}}, "give one of"), ({"safety": {"redundancy": "twice"}}, "is no rule"),
        ({"safety": {"redundancy": "p>=0.99"}}, "node_availability"), ({"safety": {"redundancy": "zone"}}, "zones"),
        ({"lengths": {"input": "uniform:5"}}, "lengths.input"), ({"lengths": {"hit_rate": 1.0}}, "hit_rate"), ({"surprise": 1}, "surprise"),
        ({"search": {"gpus": []}}, "gpus"), ({"safety": {"queueing": 0.0}}, "queueing"), ({"proof": {"seeds": 1}}, "seeds"),
    ],
)  # fmt: skip
def test_bad_goals_are_one_line(changed, said):
    with pytest.raises(SpecError) as caught:
        plan(goal(**changed))
    assert said in str(caught.value)
    assert "\n" not in str(caught.value)


FILE = """\
model: llama-3.1-8b
traffic: {users: 6000, peak_factor: 2.0, growth_per_month: 0.02, months: 6}
slo: ttft.p95=500ms,tpot.p95=30ms
search: {gpus: [l40s], dtype: [fp8], tp: [1]}
proof: {finalists: 0}
"""


def test_a_file_of_goals_and_options_over_it(tmp_path, capsys):
    path = tmp_path / "goal.yaml"
    path.write_text(FILE)
    assert main(["plan", str(path), "--json"]) == 0
    plain = json.loads(capsys.readouterr().out)
    assert plain["demand"]["mean_per_s"] == pytest.approx(6000 * 0.2 * 0.4 / 60)
    assert plain["demand"]["planned_peak_per_s"] == pytest.approx(2 * 8.0 * 1.02**6)
    assert main(["plan", str(path), "--json", "--rate", "1"]) == 0
    less = json.loads(capsys.readouterr().out)
    assert less["demand"]["peak_per_s"] == 2.0
    assert less["choices"][0]["usd_per_month"] <= plain["choices"][0]["usd_per_month"]
    path.write_text(FILE.replace("users: 6000", "rate_per_s: many"))
    assert main(["plan", str(path)]) == 2
    assert "traffic.rate_per_s: many: must be a number" in capsys.readouterr().err


@pytest.mark.parametrize("path", sorted((ROOT / "examples").glob("plan*.yaml")), ids=lambda p: p.stem)
def test_examples_are_goals(path):
    asked = Goal.load(path)
    assert asked.asked()[0].planned_peak_per_s > asked.asked()[0].mean_per_s


def test_a_trace_gives_mean_peak_and_lengths(tmp_path):
    rows = [(i * 0.5, 100 + i % 7, 20 + i % 5) for i in range(400)] + [(150 + i * 0.01, 100, 20) for i in range(100)]
    path = tmp_path / "trace.csv"
    path.write_text("arrival_s,input_tokens,output_tokens\n" + "\n".join(",".join(map(str, r)) for r in sorted(rows)) + "\n")
    demand, work = goal(traffic={"trace": str(path)}).asked()
    assert demand.mean_per_s == pytest.approx(500 / 199.5)
    assert demand.peak_per_s == pytest.approx((120 + 100) / 60)
    assert work.input.longest == 106


def test_share_of_requests_is_harder_than_percentiles_apart():
    proof = {"requests": 400, "seeds": 3, "most_seeds": 5, "finalists": 1}
    search = {"gpus": ["h100"], "dtype": ["fp8"], "tp": [1]}
    apart = plan(goal(slo="ttft.p95=150ms,tpot.p95=12ms", search=search, proof=proof))
    joint = plan(goal(slo="ttft=150ms,tpot=12ms,share=0.95", search=search, proof=proof))
    assert joint.best.rate_per_s <= apart.best.rate_per_s * 1.05
    assert joint.best.at_peak is not None
    assert float(joint.best.at_peak.mean[0]) >= 0.95


def test_the_published_schema_is_what_is_written():
    from inferplan.report.plan_schema import plan_schema

    assert json.loads((ROOT / "docs/schema/plan-1.json").read_text()) == plan_schema()


@pytest.mark.slow
def test_pools_win_where_prompts_hold_up_decodes():
    """Long prompts under a tight limit on gaps: pools take far fewer devices, proven by simulating them whole."""
    search = {"gpus": ["h100"], "dtype": ["fp8"], "tp": [1], "disaggregated": True}
    asked = goal(
        traffic={"rate_per_s": 15.0}, lengths={"input": "8000", "output": "200"}, slo="ttft.p95=1500ms,tpot.p95=8ms", search=search,
        proof={"requests": 300, "seeds": 3, "most_seeds": 4, "finalists": 2},
    )  # fmt: skip
    found = plan(asked)
    apart = found.best
    assert apart.pools is not None
    assert apart.verdict == "meets"
    together = next(c for c in found.choices if c.pools is None)
    assert apart.fleet.gpus < 0.8 * together.fleet.gpus
    assert sum(apart.pools) == apart.fleet.at_peak
    assert apart.fleet.replicas == apart.fleet.at_peak + 2  # a spare in each pool


def test_spares_of_a_whole_node_say_so(capsys: pytest.CaptureFixture[str]) -> None:
    """L40S are rented by the eight, so that one node more is eight replicas more; of parts rented one by one it is one."""
    words = ["plan", "-m", "8b", "--rate", "20", "--slo", "ttft.p95=500ms", "-d", "fp8", "--tp", "1", "--finalists", "0", "-g"]
    assert main([*words, "l40s"]) == 0
    assert "and 8 for failures, as many as a node holds)" in " ".join(capsys.readouterr().out.split())
    assert main([*words, "h100"]) == 0
    assert "and 1 for failures)" in " ".join(capsys.readouterr().out.split())


@pytest.mark.parametrize("money", [{"prices": {"my-card": 2.0}}, {"owned": {"my-card": {"purchase_usd": 9000}}}])
def test_a_part_in_a_file_has_its_price_by_name(money):
    card = str(ROOT / "examples" / "my-card.yaml")
    asked = {"model": "7b", "traffic": {"rate_per_s": 2.0}, "slo": "ttft.p95=5s", "proof": {"finalists": 0}, "money": money}
    found = plan({**asked, "search": {"gpus": [card, "h100"], "dtype": ["fp8"]}})
    assert {c.part for c in found.choices if c.fleet.offer} == {"my-card", "h100-sxm5-80gb"}
    with pytest.raises(NotFound, match="no hardware called 'my-card'"):
        plan({**asked, "search": {"gpus": ["h100"], "dtype": ["fp8"]}})
