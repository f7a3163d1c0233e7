"""`inferplan plan`: the fleet that carries a traffic within limits at the least cost. Does no arithmetic."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from inferplan.cli.options import listed
from inferplan.cli.output import Html, check_html, write_html
from inferplan.cli.serving_options import LAW
from inferplan.errors import SpecError

app = typer.Typer(add_completion=False)
PLACES = {
    "traffic": ("rate_per_s", "peak_per_s", "peak_factor", "profile", "users", "active_share", "requests_per_user_min", "trace", "limit",
                "window_s", "growth_per_month", "months"),
    "lengths": ("input", "output", "hit_rate"),
    "safety": ("queueing", "redundancy", "zones", "node_availability", "buffer"),
    "search": ("gpus", "dtype", "kv_dtype", "engine", "engine_version", "efficiency", "network", "tp", "pp", "dp", "ep", "max_replica_gpus",
               "max_num_seqs", "max_num_batched_tokens", "max_gpus", "utilization", "disaggregated", "draft", "objective"),
    "money": ("kinds", "providers", "prices", "node_gpus", "owned", "hours_per_month", "pue", "usd_per_kwh", "idle_share", "kg_co2_per_kwh",
              "api_usd_per_million"),
    "proof": ("finalists", "seeds", "requests", "seed"),
    "measured": ("measured_rate", "measured_tokens", "measured_gpus"),
}  # fmt: skip


@app.command()
def plan(
    goal: Annotated[str | None, typer.Argument(help="A YAML file of goals (docs/plan.md); options go before what it says.")] = None,
    model: Annotated[str | None, typer.Option("--model", "-m", help="Catalog name, Hub id or path; several with commas.")] = None,
    rate: Annotated[float | None, typer.Option("--rate", help="Requests per second in the mean.")] = None,
    peak: Annotated[float | None, typer.Option("--peak", help="Requests per second at the peak.")] = None,
    peak_factor: Annotated[float | None, typer.Option("--peak-factor", help="The peak over the mean.")] = None,
    profile: Annotated[str | None, typer.Option("--profile", help="Rates over a period in equal steps, with commas: 24 for a day.")] = None,
    users: Annotated[float | None, typer.Option("--users", help="People, in place of --rate.")] = None,
    active: Annotated[float | None, typer.Option("--active", help="Share of users that is active; unsaid: 0.2.")] = None,
    per_minute: Annotated[float | None, typer.Option("--per-minute", help="Requests a minute of an active user; unsaid: 0.4.")] = None,
    trace: Annotated[str | None, typer.Option("--trace", help="Requests from a file: mean, peak and lengths.")] = None,
    limit: Annotated[int | None, typer.Option("--limit", help="Take only the first so many requests of the trace.")] = None,
    window: Annotated[float | None, typer.Option("--window", help="Seconds over which the peak of a trace is counted; unsaid: 60.")] = None,
    growth: Annotated[float | None, typer.Option("--growth", help="Growth a month, such as 0.05.")] = None,
    months: Annotated[float | None, typer.Option("--months", help="Months until the day that is planned for.")] = None,
    isl: Annotated[int | None, typer.Option("--isl", help="Input tokens per request; unsaid: 1024.")] = None,
    osl: Annotated[int | None, typer.Option("--osl", help="Output tokens per request; unsaid: 256.")] = None,
    inputs: Annotated[str | None, typer.Option("--input-lengths", help=f"Law of prompts instead of --isl: {LAW}.")] = None,
    outputs: Annotated[str | None, typer.Option("--output-lengths", help="Law of outputs instead of --osl, in the same forms.")] = None,
    hit_rate: Annotated[float | None, typer.Option("--hit-rate", help="Share of a prompt that a prefix cache holds.")] = None,
    slo: Annotated[
        str | None, typer.Option("--slo", help="ttft.p95=500ms,tpot.p95=50ms, or by requests: ttft=500ms,tpot=50ms,share=0.95.")
    ] = None,
    queueing: Annotated[float | None, typer.Option("--queueing", help="Share of what a replica takes that is planned on it.")] = None,
    redundancy: Annotated[str | None, typer.Option("--redundancy", help="none, n+1, n+2/zone, zone or p>=0.999; unsaid: n+1.")] = None,
    zones: Annotated[int | None, typer.Option("--zones", help="Zones that replicas are spread over.")] = None,
    availability: Annotated[float | None, typer.Option("--availability", help="Share of time in which a node is up.")] = None,
    buffer: Annotated[float | None, typer.Option("--buffer", help="Share planned beyond the peak.")] = None,
    gpu: Annotated[str | None, typer.Option("--gpu", "-g", help="Parts, with commas; unsaid: all with a price.")] = None,
    dtype: Annotated[str | None, typer.Option("--dtype", "-d", help="Weight formats, with commas; unsaid: as stored.")] = None,
    kv_dtype: Annotated[str | None, typer.Option("--kv-dtype", help="Cache formats, with commas.")] = None,
    engine: Annotated[str | None, typer.Option("--engine", help="Serving engine; unsaid: vllm.")] = None,
    engine_version: Annotated[str | None, typer.Option("--engine-version", help="Release of the engine.")] = None,
    efficiency: Annotated[str | None, typer.Option("--efficiency", "--calibration", help="Times by: ideal, default, or a file.")] = None,
    network: Annotated[str | None, typer.Option("--network", help="Link between nodes, such as infiniband-ndr.")] = None,
    tp: Annotated[str | None, typer.Option("--tp", help="Tensor parallel, with commas; unsaid: powers of two.")] = None,
    pp: Annotated[str | None, typer.Option("--pp", help="Pipeline stages, with commas; unsaid: 1.")] = None,
    dp: Annotated[str | None, typer.Option("--dp", help="Attention groups, with commas.")] = None,
    ep: Annotated[str | None, typer.Option("--ep", help="Ways in which experts are dealt out, with commas.")] = None,
    replica_gpus: Annotated[int | None, typer.Option("--max-replica-gpus", help="Devices of a replica at most; unsaid: 8.")] = None,
    max_seqs: Annotated[str | None, typer.Option("--max-num-seqs", help="Requests at once that are tried, with commas.")] = None,
    max_tokens: Annotated[str | None, typer.Option("--max-num-batched-tokens", help="Tokens per step that are tried, with commas.")] = None,
    max_gpus: Annotated[int | None, typer.Option("--max-gpus", help="Devices of the fleet at most.")] = None,
    utilization: Annotated[float | None, typer.Option("--utilization", help="Share of memory the engine may use.")] = None,
    disaggregated: Annotated[
        bool | None, typer.Option("--disaggregated/--aggregated", help="Also look at pools for prefill and for decode.")
    ] = None,
    draft: Annotated[str | None, typer.Option("--draft", help="Try drafts: eagle3:3,0.7 (who, tokens, chance that one is kept).")] = None,
    objective: Annotated[str | None, typer.Option("--objective", help="What is to be small: cost, gpus or energy.")] = None,
    kind: Annotated[str | None, typer.Option("--price-type", help="on-demand, spot, reserved, capacity-block; with commas.")] = None,
    provider: Annotated[str | None, typer.Option("--provider", help="Providers of the price list, with commas; unsaid: all.")] = None,
    price: Annotated[str | None, typer.Option("--price", help="Your own, USD per device and hour: h100=2.5,h200=3.5.")] = None,
    node_gpus: Annotated[int | None, typer.Option("--node-gpus", help="Devices rented together at your own price.")] = None,
    owned: Annotated[str | None, typer.Option("--owned", help="Parts that are bought, in USD: h100=30000, or h100 for the list.")] = None,
    years: Annotated[float | None, typer.Option("--years", help="Years over which owned devices are written off; unsaid: 4.")] = None,
    hours: Annotated[float | None, typer.Option("--hours", help="Hours of a month that are paid for; unsaid: 730.")] = None,
    pue: Annotated[float | None, typer.Option("--pue", help="Power of the building over that of the devices; unsaid: 1.3.")] = None,
    kwh: Annotated[float | None, typer.Option("--usd-per-kwh", help="Price of energy for owned devices; unsaid: 0.12.")] = None,
    idle: Annotated[float | None, typer.Option("--idle-power", help="Power of an idle device over its rated one; unsaid: 1.")] = None,
    co2: Annotated[float | None, typer.Option("--kg-co2-per-kwh", help="Intensity of the energy.")] = None,
    api_price: Annotated[float | None, typer.Option("--api-price", help="USD per million tokens elsewhere, for the break-even.")] = None,
    finalists: Annotated[int | None, typer.Option("--finalists", help="Candidates that are simulated; 0: none. Unsaid: 3.")] = None,
    seeds: Annotated[int | None, typer.Option("--seeds", help="Runs of each simulation at first; unsaid: 5.")] = None,
    requests: Annotated[int | None, typer.Option("--requests", help="Requests that count in each run; unsaid: 1500.")] = None,
    seed: Annotated[int | None, typer.Option("--seed", help="Seed of the first run; the others follow it.")] = None,
    replica_rate: Annotated[
        float | None, typer.Option("--replica-rate", help="Requests/s that a measured replica takes: nothing is estimated.")
    ] = None,
    replica_tokens: Annotated[float | None, typer.Option("--replica-tokens", help="The same in tokens/s, both in and out.")] = None,
    replica_devices: Annotated[int | None, typer.Option("--replica-gpus", help="Devices of the measured replica; unsaid: 1.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the plan as JSON, in base units.")] = False,
    csv: Annotated[str | None, typer.Option("--csv", help="Write a row per choice to FILE, with a comment of what was asked.")] = None,
    bare_csv: Annotated[bool, typer.Option("--no-comment", help="Leave the comment out of --csv.")] = False,
    xlsx: Annotated[str | None, typer.Option("--xlsx", help="Write a workbook with live formulas to FILE (needs inferplan[xlsx]).")] = None,
    parquet: Annotated[str | None, typer.Option("--parquet", help="Write a row per choice to FILE (needs inferplan[parquet]).")] = None,
    markdown: Annotated[str | None, typer.Option("--markdown", help="Write the plan as Markdown to FILE.")] = None,
    html: Html = None,
    plot: Annotated[str | None, typer.Option("--plot", help="Draw cost against latency, and use, into FILE, a PNG, SVG or PDF.")] = None,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="No progress on the screen.")] = False,
) -> int:
    """The cheapest fleet that carries a traffic within limits: parts, formats, splits, replicas, money, and what it hangs on.

    The exit code is 1 where nothing does, with the smallest change that would help.
    """
    from inferplan.planner.plan import plan as planned
    from inferplan.report import canvas, files
    from inferplan.report.plan import plan_record, progress, show_plan
    from inferplan.report.screen import console

    given: dict[str, Any] = {
        "rate_per_s": rate, "peak_per_s": peak, "peak_factor": peak_factor, "profile": _numbers(profile, "--profile"), "users": users,
        "active_share": active, "requests_per_user_min": per_minute, "trace": trace, "limit": limit, "window_s": window,
        "growth_per_month": growth, "months": months, "input": inputs or (None if isl is None else str(isl)),
        "output": outputs or (None if osl is None else str(osl)), "hit_rate": hit_rate, "queueing": queueing, "redundancy": redundancy,
        "zones": zones, "node_availability": availability, "buffer": buffer, "gpus": _words(gpu), "dtype": _words(dtype),
        "kv_dtype": _words(kv_dtype), "engine": engine, "engine_version": engine_version, "efficiency": efficiency, "network": network,
        "tp": _whole(tp, "--tp"), "pp": _whole(pp, "--pp"), "dp": _whole(dp, "--dp"), "ep": _whole(ep, "--ep"),
        "max_replica_gpus": replica_gpus, "max_num_seqs": _whole(max_seqs, "--max-num-seqs"),
        "max_num_batched_tokens": _whole(max_tokens, "--max-num-batched-tokens"), "max_gpus": max_gpus, "utilization": utilization,
        "disaggregated": disaggregated, "draft": _draft(draft), "objective": objective, "kinds": _words(kind),
        "providers": _words(provider), "prices": _prices(price, "--price"),
        "node_gpus": node_gpus, "owned": _owned(owned, years), "hours_per_month": hours, "pue": pue,
        "usd_per_kwh": kwh, "idle_share": idle, "kg_co2_per_kwh": co2, "api_usd_per_million": api_price, "finalists": finalists,
        "seeds": seeds, "requests": requests, "seed": seed, "measured_rate": replica_rate, "measured_tokens": replica_tokens,
        "measured_gpus": replica_devices,
    }  # fmt: skip
    asked = _goal(goal, _words(model), slo, given)
    _check_outputs(xlsx, parquet)
    check_html(html)
    if plot:
        canvas.ending(plot)
    with progress(quiet=quiet) as told:
        found = planned(asked, progress=told)
    _write(found, csv, bare_csv, xlsx, parquet, markdown)
    if plot:
        from inferplan.report.plan_plots import plot_plan

        canvas.write_picture(plot_plan(found), plot)
    write_html(html, lambda: _page(found))
    if as_json:
        typer.echo(files.json_text(plan_record(found)))
    else:
        show_plan(found, console())
    return 0


def _page(found: Any) -> Any:
    from inferplan.report.html.plan import page

    return page(found)


def _goal(path: str | None, model: list[str] | None, slo: str | None, given: dict[str, Any]) -> Any:
    """The goal of a file with what the options say in its place; names in errors are those of the file's fields."""
    from inferplan.planner.goal import Goal

    told = Goal.load(path).model_dump(exclude_unset=True) if path else {}
    if model:
        told["model"] = model
    if slo is not None:
        told["slo"] = slo
    for place, names in PLACES.items():
        said = {n.removeprefix("measured_"): given[n] for n in names if given[n] is not None}
        if place == "measured":
            said = {{"rate": "rate_per_s", "tokens": "tokens_per_s"}.get(n, n): v for n, v in said.items()}
        if said or place == "traffic":
            told[place] = _over(told.get(place) or {}, said)
    return Goal.from_mapping(told, file=None)


def _over(told: dict[str, Any], said: dict[str, Any]) -> dict[str, Any]:
    """What a file tells with what options say; of fields that exclude each other the option's stays."""
    for rivals in (("rate_per_s", "users", "trace"), ("peak_per_s", "peak_factor", "profile")):
        if any(n in said for n in rivals):
            told = {n: v for n, v in told.items() if n not in rivals}
    return {**told, **said}


def _words(text: str | None) -> list[str] | None:
    return None if text is None else listed(text)


def _numbers(text: str | None, field: str) -> list[float] | None:
    if text is None:
        return None
    found = []
    for part in listed(text):
        try:
            found.append(float(part))
        except ValueError:
            raise SpecError("must be numbers with commas between them", field=field, value=part) from None
    return found


def _whole(text: str | None, field: str) -> list[int] | None:
    numbers = _numbers(text, field)
    if numbers is None:
        return None
    for n in numbers:
        if n != n or abs(n) == float("inf") or n != int(n) or n < 1:
            raise SpecError("must be whole numbers from 1, with commas between them", field=field, value=f"{n:g}")
    return [int(n) for n in numbers]


def _prices(text: str | None, field: str) -> dict[str, float] | None:
    if text is None:
        return None
    found = {}
    for part in listed(text):
        name, _, value = (w.strip() for w in part.partition("="))
        try:
            found[name] = float(value)
        except ValueError:
            raise SpecError("must be like h100=2.5,h200=3.5", field=field, value=part) from None
    return found


def _owned(text: str | None, years: float | None) -> dict[str, dict[str, float]] | None:
    if text is None:
        if years is not None:
            raise SpecError("needs --owned", field="--years", value=years)
        return None
    found: dict[str, dict[str, float]] = {}
    for part in listed(text):
        name, has, _ = (w.strip() for w in part.partition("="))
        bought = {"purchase_usd": (_prices(part, "--owned") or {})[name]} if has else {}
        found[name] = bought | ({} if years is None else {"years": years})
    return found


def _draft(text: str | None) -> dict[str, Any] | None:
    if text is None:
        return None
    name, _, rest = text.partition(":")
    numbers = _numbers(rest, "--draft") if rest else []
    if not name or numbers is None or len(numbers) != 2 or numbers[0] != int(numbers[0]):
        raise SpecError("must be like eagle3:3,0.7: who, tokens, chance that one is kept", field="--draft", value=text)
    return {"name": name, "tokens": int(numbers[0]), "accept": numbers[1]}


def _check_outputs(xlsx: str | None, parquet: str | None) -> None:
    """Raise for what cannot be written before anything is computed."""
    from inferplan.report import sheets

    if xlsx:
        sheets.openpyxl()
    if parquet:
        sheets.pyarrow()


def _write(found: Any, csv: str | None, bare: bool, xlsx: str | None, parquet: str | None, markdown: str | None) -> None:
    from inferplan.report import files, sheets

    if csv:
        files.write_text(csv, sheets.plan_csv(found, comment=not bare))
    if xlsx:
        files.write_bytes(xlsx, sheets.plan_workbook(found))
    if parquet:
        files.write_bytes(parquet, sheets.plan_parquet(found))
    if markdown:
        files.write_text(markdown, sheets.plan_markdown(found))
