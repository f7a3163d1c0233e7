"""Kernel and link efficiencies from measurements: reads validation/operators/*.csv, writes calibration/kernels.yaml and links.yaml.

Run from the root of a checkout: `python tools/fit_kernels.py` (about two minutes), `--forms` to compare forms, `--check` to write nothing.
Per kind, number format and class of parts three constants are fitted by least mean |log(predicted / measured)|: shares of peak and of
bandwidth, at most 1, and the start-up. How sharply the slower roof wins is one constant per kind. Held-out errors leave out whole parts.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence
from functools import cache
from pathlib import Path

import numpy as np
import pandas as pd

from inferplan.roofline.comm import Tier, tiers, within_s
from inferplan.roofline.efficiency import LinkRate
from inferplan.roofline.optime import op_s
from inferplan.specs.hardware import Accelerator

ROOT = Path(__file__).parents[1]
ROWS = ROOT / "validation" / "operators"
OUT = ROOT / "calibration"
SHARPNESS = {"matmul": 3.0, "experts": 1.0, "attention_decode": 3.0, "attention_prefill": 1.0}
START = {
    "matmul": (0.7, 0.8, 5e-6),
    "experts": (0.4, 0.8, 3e-5),
    "attention_decode": (0.5, 0.8, 1e-5),
    "attention_prefill": (0.6, 0.4, 1e-5),
}
RATE = {"fp8-block": "fp8", "int8-weight-only": "bf16", "int4-weight-only": "bf16", "mxfp4-weight-only": "bf16", "mxfp4-mxfp8": "fp8"}
WEIGHT = {"bf16": 2, "fp8": 1, "fp8-block": 1 + 4 / 128**2, "int8": 1, "nvfp4": 0.5625, "mxfp4-mxfp8": 0.53125}
WEIGHT |= {"int8-weight-only": 1, "int4-weight-only": 0.5 + 2 / 128, "mxfp4-weight-only": 0.53125}
ACTIVATION = {"bf16": 2, "fp8": 1, "fp8-block": 1 + 4 / 128, "int8": 1, "nvfp4": 0.5625, "mxfp4-mxfp8": 1 + 1 / 32}
ACTIVATION |= {"int8-weight-only": 2, "int4-weight-only": 2, "mxfp4-weight-only": 2}
CACHE_BYTES = 40e6  # of a part whose sheet states none
FEWEST = 12  # rows of a class that is fitted at all
LEAST = 20  # rows of an engine or a part that may have constants of its own
# Rows that served traffic contradicts. vLLM 0.24, fp8 with one scale per tensor on Hopper: 0.5 TB/s, a fifth of what its blocks of 128x128
# reach; but Llama 4 Scout in fp8 on two H100 under vLLM 0.15.1 has a mean ITL of 17.9 ms at 2.5 requests/s of 248 tokens, about eleven
# sequences at once (inference-sim training runs, 17-llama-4-scout-17b-16e-tp2-general-lite-2-1): at that rate the experts alone need 50 ms.
CONTRADICTED = (("vllm", "fp8", "nvidia-hopper"),)


@cache
def part(name: str) -> Accelerator:
    return Accelerator.find(name)


def read(name: str) -> pd.DataFrame:
    """The rows of a file with what the parts' sheets say."""
    d = pd.read_csv(ROWS / f"{name}.csv")
    d["seconds"] = d.latency_us * 1e-6
    d["architecture"] = [part(p).architecture for p in d.part]
    d["bandwidth"] = [part(p).bandwidth_bytes_per_s for p in d.part]
    return d


def peaks(d: pd.DataFrame, formats: Sequence[str]) -> list[float]:
    return [part(p).peak_flops_per_s(RATE.get(f, f)) for p, f in zip(d.part, formats, strict=True)]


def cache_bytes(d: pd.DataFrame) -> np.ndarray:
    return np.array([part(p).cache.value if part(p).cache else CACHE_BYTES for p in d.part])


def matmul() -> pd.DataFrame:
    """Matrix products; weights of at most 20 MB on parts with a large cache and slow memory were read from the cache, and are left out."""
    d = read("gemm")
    weights = d.format.map(WEIGHT) * d.n * d.k
    d["flops"], d["peak"], d["variant"] = 2.0 * d.m * d.n * d.k, peaks(d, d.format), d.format
    d["moved"] = weights + d.format.map(ACTIVATION) * d.m * d.k + 2.0 * d.m * d.n
    return d[~((weights < 20e6) & (cache_bytes(d) > 90e6) & (d.bandwidth < 2e12))]


def attention_decode() -> pd.DataFrame:
    """Decode attention; rows between 2 MB and twice the cache were read from the cache, and are left out."""
    d = read("attention_decode")
    d["flops"], d["peak"] = 4.0 * d.batch * d.context * d.heads * d.head_dim, peaks(d, ["bf16"] * len(d))
    d["moved"] = 2.0 * d.batch * d.context * d.kv_heads * d.head_dim * d.kv.map(WEIGHT) + 4.0 * d.batch * d.heads * d.head_dim
    d["variant"] = d.kv
    return d[(d.moved < 2e6) | (d.moved > 2 * cache_bytes(d))]


def attention_prefill() -> pd.DataFrame:
    """Prefill attention over causal pairs; bytes are queries, results and the cache written."""
    d = read("attention_prefill")
    tokens = d.batch * d.tokens
    d["flops"], d["peak"] = 2.0 * tokens * (d.tokens + 1) * d.heads * d.head_dim, peaks(d, d.format)
    d["moved"] = 4.0 * tokens * d.heads * d.head_dim + 2.0 * tokens * d.kv_heads * d.head_dim * d.kv.map(WEIGHT)
    d["variant"] = d.format
    return d


def experts(parallel: bool = False) -> pd.DataFrame:
    """A layer's routed experts as one operator, all on one rank (or, `parallel`, spread over ranks, where routing is uneven)."""
    d = read("experts")
    d = d[(d.ep > 1) if parallel else (d.ep == 1)]
    for engine, form, architecture in CONTRADICTED:
        d = d[~((d.engine == engine) & (d.format == form) & (d.architecture == architecture))]
    pairs, local, width = d.tokens * d.top_k / d.ep, d.experts / d.ep, d.width / d.tp
    random = local * (1 - (1 - d.top_k / d.experts) ** d.tokens)
    touched = np.where(d.routing == "balanced", np.minimum(local, pairs), random)
    d = d.assign(flops=6.0 * pairs * d.hidden * width, peak=peaks(d, d.format), variant=d.format)
    acts = pairs * (d.format.map(ACTIVATION) * (d.hidden + width) + 2.0 * (2 * width + d.hidden))
    return d.assign(moved=touched * 3.0 * d.hidden * width * d.format.map(WEIGHT) + acts)


KINDS: dict[str, Callable[[], pd.DataFrame]] = {
    "matmul": matmul,
    "experts": experts,
    "attention_decode": attention_decode,
    "attention_prefill": attention_prefill,
}


def search(loss: Callable[[np.ndarray], float], start: Sequence[float], free: Sequence[int]) -> np.ndarray:
    """The least of a function by a pattern search along each coordinate, from logarithms of `start`."""
    x, step = np.log(np.array(start, float)), np.full(len(start), 0.5)
    best = loss(x)
    for _ in range(300):
        for i in free:
            tried = [x + sign * step[i] * np.eye(len(x))[i] for sign in (1, -1)]
            found = min(tried, key=loss)
            if (value := loss(found)) < best - 1e-9:
                x, best, step[i] = found, value, step[i] * 1.3
            else:
                step[i] *= 0.5
        if step[list(free)].max() < 1e-3:
            break
    return x


Fit = tuple[float, float, float]


def predict(d: pd.DataFrame, fit: Fit, sharpness: float) -> np.ndarray:
    return np.asarray(
        op_s(
            d.flops.to_numpy(),
            d.moved.to_numpy(),
            peak=d.peak.to_numpy(),
            bandwidth=d.bandwidth.to_numpy(),
            eff_flops=fit[0],
            eff_bandwidth=fit[1],
            launch_s=fit[2],
            sharpness=sharpness,
        )
    )


def fit(d: pd.DataFrame, kind: str, sharpness: float | None = None) -> Fit:
    """Three constants; that of compute stays at its start for decode attention, which no row here is bound by."""
    p = SHARPNESS[kind] if sharpness is None else sharpness
    seconds = np.log(d.seconds.to_numpy())

    def values(x: np.ndarray) -> Fit:
        return float(min(1.0, np.exp(x[0]))), float(min(1.0, np.exp(x[1]))), float(np.exp(x[2]))

    def loss(x: np.ndarray) -> float:
        return float(np.mean(np.abs(np.log(predict(d, values(x), p)) - seconds)) + 1e-3 * np.abs(x - origin).sum() / len(x))

    origin = np.log(np.array(START[kind]))
    return values(search(loss, START[kind], (1, 2) if kind == "attention_decode" else (0, 1, 2)))


def errors(d: pd.DataFrame, found: Fit, kind: str, sharpness: float | None = None) -> np.ndarray:
    p = SHARPNESS[kind] if sharpness is None else sharpness
    return np.asarray(np.abs(predict(d, found, p) / d.seconds.to_numpy() - 1))


def held_out(d: pd.DataFrame, kind: str, sharpness: float | None = None) -> np.ndarray:
    """Errors on each part of a class from constants fitted on its other parts; empty for a class of one."""
    if d.part.nunique() < 2:
        return np.array([])
    return np.concatenate([errors(d[d.part == p], fit(d[d.part != p], kind, sharpness), kind, sharpness) for p in sorted(d.part.unique())])


def pooled_rows(d: pd.DataFrame, kind: str) -> pd.DataFrame:
    """The rows to pool: an engine whose kernel moves bytes at under half the rate of another's here runs a fallback, and is left out."""
    apart = {e: fit(x, kind)[1] for e, x in d.groupby("engine") if len(x) >= LEAST}
    slow = [e for e, share in apart.items() if share < 0.5 * max(apart.values())]
    return d[~d.engine.isin(slow)]


def of_class(d: pd.DataFrame, kind: str) -> dict[str, object]:
    """The entry of a class: pooled over engines, and the engines whose own constants cut their mean error by a tenth."""
    rows = pooled_rows(d, kind)
    found = fit(rows, kind)
    entry = stated(found, "measured", errors(rows, found, kind), held_out(rows, kind))
    own = {}
    for engine, x in d.groupby("engine"):
        if len(x) < LEAST or (d.engine.nunique() == 1):
            continue
        apart = fit(x, kind)
        if errors(x, apart, kind).mean() < 0.9 * errors(x, found, kind).mean():
            own[str(engine)] = stated(apart, "measured", errors(x, apart, kind), held_out(x, kind))
    return entry | ({"engines": own} if own else {})


def stated(found: Fit, basis: str, error: np.ndarray | None = None, out: np.ndarray | None = None) -> dict[str, object]:
    entry: dict[str, object] = {"eff_flops": round(found[0], 3), "eff_bandwidth": round(found[1], 3), "launch": f"{found[2] * 1e6:.2f} us"}
    entry["basis"] = basis
    if error is not None:
        entry |= {"rows": len(error), "error": round(float(np.median(error)), 3)}
    if out is not None and len(out):
        entry["held_out"] = round(float(np.median(out)), 3)
    return entry


def typical(entries: Sequence[dict[str, object]]) -> dict[str, object]:
    """The middle of the classes' constants, for parts of classes that were not measured."""

    def middle(key: str) -> float:
        return float(np.exp(np.median([np.log(number(e[key])) for e in entries])))

    found = (middle("eff_flops"), middle("eff_bandwidth"), max(middle("launch"), 1e-9))
    return stated(found, "inherited")


def number(value: object) -> float:
    return float(value.removesuffix(" us")) * 1e-6 + 1e-9 if isinstance(value, str) else float(value)  # type: ignore[arg-type]


def special_parts(d: pd.DataFrame, kind: str, entry: dict[str, object]) -> dict[str, dict[str, object]]:
    """Parts that reach a share of their peak over 15 % from their class's, where that lowers their error: a peak no kernel comes near."""
    found = {}
    shared = (number(entry["eff_flops"]), number(entry["eff_bandwidth"]), number(entry["launch"]))
    for name, x in pooled_rows(d, kind).groupby("part"):
        if len(x) >= LEAST and d.part.nunique() > 1:
            own = fit(x, kind)
            better = errors(x, own, kind).mean() < 0.95 * errors(x, shared, kind).mean()
            if better and abs(np.log(own[0] / shared[0])) > 0.15:
                found[str(name)] = of_class(d[d.part == name], kind)
    return found


def kernels(kind: str) -> tuple[dict[str, dict[str, object]], pd.DataFrame]:
    """All entries of a kind, and how far rows lie from the entries of their class and from those of classes not their own."""
    d, found, report = KINDS[kind](), {}, []
    for variant, rows in d.groupby("variant"):
        level: dict[str, object] = {}
        for name, x in rows.groupby("architecture"):
            if len(x) < FEWEST:
                continue
            level[str(name)] = of_class(x, kind)
            level |= special_parts(x, kind, level[str(name)])  # type: ignore[arg-type]
        classes = {k: v for k, v in level.items() if k in set(rows.architecture)}
        for name, entry in classes.items():
            x = pooled_rows(rows[rows.architecture == name], kind)
            others = [v for k, v in classes.items() if k != name]
            report.append(summary(kind, str(variant), name, x, entry, others))
        level |= vendors(classes)
        found[str(variant)] = level
    return found, pd.DataFrame(report)


def vendors(classes: dict[str, object]) -> dict[str, object]:
    nvidia = [v for k, v in classes.items() if k.startswith("nvidia")]
    level = {"nvidia": typical(nvidia)} if nvidia else {}  # type: ignore[arg-type]
    return level | ({"default": typical(list(classes.values()))} if classes else {})  # type: ignore[arg-type]


def summary(kind: str, variant: str, name: str, x: pd.DataFrame, entry: object, others: Sequence[object]) -> dict[str, object]:
    """One line of the report."""
    row = {"kind": kind, "variant": variant, "class": name, "rows": len(x), "in_sample": entry["error"]}  # type: ignore[index]
    row["part_out"] = entry.get("held_out")  # type: ignore[attr-defined]
    if others:
        other = typical(others)  # type: ignore[arg-type]
        constants = (number(other["eff_flops"]), number(other["eff_bandwidth"]), number(other["launch"]))
        row["class_out"] = round(float(np.median(errors(x, constants, kind))), 3)
    return row


def compare_forms() -> None:
    """Median held-out error by kind and sharpness, pooled and per engine."""
    for kind, rows in KINDS.items():
        d = rows()
        for p in (1.0, 2.0, 3.0, 6.0, np.inf):
            parts = [held_out(pooled_rows(x, kind), kind, p) for _, x in d.groupby(["variant", "architecture"]) if len(x) >= FEWEST]
            e = np.concatenate(parts)
            print(f"{kind:18} sharpness {p:4} held-out median {np.median(e):.3f} mean {e.mean():.3f} ({len(e)} rows)")


# links


def collectives() -> pd.DataFrame:
    """Collectives with each rank's message and the tier they ran on; a library's all-gather states the result, oneCCL's the block."""
    d = pd.read_csv(ROWS / "collectives.csv")
    d["seconds"] = d.latency_us * 1e-6
    d["message"] = np.where((d.kind == "all_gather") & (d.engine != "oneccl"), d["bytes"] / d.ranks, d["bytes"])
    d["tier"] = [tiers(part(p))[0].name for p in d.part]
    without_peers = (d.part == "l40s") & (d.ranks > 2)
    return d[~without_peers & (d.ranks <= 8) & ~((d.part == "gb300") & (d.ranks > 4))]


LINK_START = {"eff": 0.75, "eff_switch": 0.65, "base": 5e-6, "hop": 1e-6, "hop_bulk": 3e-6, "switch": 3e-5, "one_shot": 4e-6}
TIMES = ("base", "hop", "hop_bulk", "switch", "one_shot")


def rate_of(values: dict[str, float], ranks: int | None) -> LinkRate:
    """A record from constants in seconds and shares."""
    texts = {k: f"{values[k]:.9f} s" for k in TIMES if k in values}
    shares = {k: min(1.0, values[k]) for k in ("eff", "eff_switch") if k in values}
    return LinkRate.model_validate({**shares, **texts, "ranks": ranks, "basis": "measured"})


def link_seconds(d: pd.DataFrame, rate: LinkRate) -> np.ndarray:
    found = np.empty(len(d))
    for (name, kind), i in d.reset_index(drop=True).groupby(["part", "kind"]).groups.items():
        x, tier = d.iloc[list(i)], tiers(part(name))[0]
        found[list(i)] = within_s(kind, x.message.to_numpy(), x.ranks.to_numpy(), tier, rate)
    return found


def fit_link(d: pd.DataFrame, tier: Tier) -> tuple[LinkRate, dict[str, float]]:
    """First the library's collectives, then the start-up of the engines' own all-reduce with the rest held."""
    library = d[d.engine.isin(["nccl", "oneccl"])]
    names = ["eff", "base", "hop", "hop_bulk"] + (["eff_switch", "switch"] if tier.reduces else [])
    values = fit_some(library, names, {}, None)
    ranks = None if tier.kind in ("switch", "mesh") else 2
    own = d[~d.engine.isin(["nccl", "oneccl"]) & (d["bytes"] <= 2**21) & (d.ranks <= (ranks or 8))]
    if len(own):
        values = fit_some(own, ["one_shot"], values, ranks)
    return rate_of(values, ranks if len(own) else None), values


def fit_some(d: pd.DataFrame, names: Sequence[str], held: dict[str, float], ranks: int | None) -> dict[str, float]:
    seconds = np.log(d.seconds.to_numpy())

    def values(x: np.ndarray) -> dict[str, float]:
        return held | dict(zip(names, np.exp(x).tolist(), strict=True))

    def loss(x: np.ndarray) -> float:
        return float(np.mean(np.abs(np.log(link_seconds(d, rate_of(values(x), ranks))) - seconds)))

    return values(search(loss, [LINK_START[n] for n in names], range(len(names))))


def link_errors(d: pd.DataFrame, rate: LinkRate) -> np.ndarray:
    return np.abs(link_seconds(d, rate) / d.seconds.to_numpy() - 1)


def links() -> tuple[dict[str, object], pd.DataFrame]:
    d, found, report = collectives(), {}, []
    for name, x in d.groupby("tier"):
        tier = tiers(part(x.part.iloc[0]))[0]
        rate, values = fit_link(x, tier)
        out = [link_errors(x[x.part == p], fit_link(x[x.part != p], tier)[0]) for p in x.part.unique() if x.part.nunique() > 1]
        entry: dict[str, object] = {"eff": round(rate.eff, 3)}
        entry |= {"eff_switch": round(rate.eff_switch, 3)} if rate.eff_switch else {}
        entry |= {k: f"{values[k] * 1e6:.2f} us" for k in TIMES if k in values}
        entry |= {"ranks": rate.ranks} if rate.ranks else {}
        entry |= {"basis": "measured", "rows": len(x), "error": round(float(np.median(link_errors(x, rate))), 3)}
        entry |= {"held_out": round(float(np.median(np.concatenate(out))), 3)} if out else {}
        found[str(name)] = entry
        for (kind, library), y in x.groupby(["kind", x.engine.isin(["nccl", "oneccl"])]):
            short = y["bytes"] <= 2**20
            e = link_errors(y, rate.model_copy(update={"one_shot": None}) if library else rate)
            report.append({"link": name, "kind": kind, "library": library, "rows": len(y), "median": np.median(e).round(3),
                           "to_1MiB": np.median(e[short]).round(3), "above": np.median(e[~short]).round(3)})  # fmt: skip
    return found, pd.DataFrame(report)


def flow(value: object) -> str:
    """A value as YAML on one line."""
    if isinstance(value, dict):
        return "{" + ", ".join(f"{k}: {flow(v)}" for k, v in value.items()) + "}"
    return str(value)


HEADER = """# Written by tools/fit_kernels.py from validation/operators/*.csv; do not edit, run it again.
# error: median distance of the rows from the fit; held_out: the same for parts of the class that the fit had not seen.
"""


def write_kernels(found: dict[str, dict[str, dict[str, object]]]) -> str:
    lines = [HEADER + "name: kernels\nsharpness: " + flow(SHARPNESS) + "\nkernels:"]
    for kind, variants in found.items():
        lines.append(f"  {kind}:")
        for variant, levels in variants.items():
            lines.append(f"    {variant}:")
            for level, entry in sorted(levels.items()):
                lines += entry_lines(level, entry)
    return "\n".join(lines) + "\n"


def entry_lines(level: str, entry: object) -> list[str]:
    own = {k: v for k, v in entry.items() if k != "engines"}  # type: ignore[attr-defined]
    engines = entry.get("engines", {})  # type: ignore[attr-defined]
    if not engines:
        return [f"      {level}: {flow(own)}"]
    head = [f"      {level}:"] + [f"        {k}: {v}" for k, v in own.items()] + ["        engines:"]
    return head + [f"          {name}: {flow(one)}" for name, one in engines.items()]


def write_links(found: dict[str, object]) -> str:
    return HEADER + "name: links\nlinks:\n" + "".join(f"  {name}: {flow(entry)}\n" for name, entry in found.items())


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    arguments.add_argument("--forms", action="store_true")
    arguments.add_argument("--check", action="store_true")
    asked = arguments.parse_args()
    if asked.forms:
        compare_forms()
        return
    pairs = {kind: kernels(kind) for kind in KINDS}
    table = pd.concat([report for _, report in pairs.values()])
    by_link, link_report = links()
    print(table.to_string(index=False))
    print(table.assign(w=table.rows).groupby("kind").apply(weighted).to_string())
    print(link_report.to_string(index=False))
    if not asked.check:
        OUT.mkdir(exist_ok=True)
        (OUT / "kernels.yaml").write_text(write_kernels({kind: found for kind, (found, _) in pairs.items()}))
        (OUT / "links.yaml").write_text(write_links(by_link))


def weighted(x: pd.DataFrame) -> pd.Series:
    """Errors of a kind, each class counted by its rows."""
    known = {c: x[x[c].notna()] for c in ("in_sample", "part_out", "class_out")}
    return pd.Series({c: round(float((y[c] * y["rows"]).sum() / y["rows"].sum()), 3) for c, y in known.items()})


if __name__ == "__main__":
    main()
