"""How fast a sweep is: points per second of one core against scalar calls in the same run, formatting apart; large ones on Dask.

    python benchmarks/sweep.py [model] [part]
    python benchmarks/sweep.py --dask POINTS FOLDER.parquet/ [workers]

The second form writes that many points (about) and prints the peak memory of this process and of the workers.
"""

import os
import resource
import sys
import threading
import time
from pathlib import Path

import numpy as np

import inferplan as ip
from inferplan.deployment import estimate
from inferplan.planner.carry import carry, dask_executor
from inferplan.planner.shards import Manifest, missing
from inferplan.planner.sweep import COLUMNS, Chunk, Layout, Table, Tally, blocks
from inferplan.report.sweep_files import Pieces, Target, Writing, encoded, finished

KIB_PER_MIB = 1024  # Linux counts resident memory in KiB
SCALAR = 40  # points that are timed one by one


def grids(model: str, part: str) -> dict[str, ip.Space]:
    """Grids of one model whose points share more or less of the work."""
    both = {"model": model, "hardware": part, "precision": "fp8"}
    return {
        "lengths": ip.Space(**both, tp="1..8x2", batch="1..256", input_tokens="128..8192+128", output_tokens="64..2048+128"),
        "many batches": ip.Space(**both, tp="1..8x2", batch="1..2048", input_tokens="256..8192x2", output_tokens="64..4096x1.2"),
        "prompts alone": ip.Space(**both, tp="1..8x2", batch="1..256", input_tokens="16..8192+32", output_tokens="256"),
        "many small deployments": ip.Space(**both, tp="1..8x2", pp="1..4", dp="1..8x2", batch="1..256x2", input_tokens="256..8192x2"),
    }


def cpu(function) -> tuple[float, object]:
    start = time.process_time()
    found = function()
    return time.process_time() - start, found


def scalar_s(space: ip.Space) -> float:
    """Processor seconds of one point by `estimate`, over some spread over the grid."""
    rng = np.random.default_rng(0)
    cases = [space.case(int(rng.integers(space.cases))) for _ in range(SCALAR)]
    picks = [(case, *(int(rng.choice(getattr(space, n))) for n in ("batch", "input_tokens", "output_tokens"))) for case in cases]

    def loop() -> None:
        for case, batch, inputs, outputs in picks:
            e = estimate(
                case.model, case.hardware, case.precision, batch=batch, input_tokens=inputs, output_tokens=outputs, parallel=case.parallel
            )
            _ = e.ttft_s, e.tpot_s, e.floor_tpot_s, e.floor_ttft_s, e.fits

    loop()
    return cpu(loop)[0] / SCALAR


def rates(model: str, part: str) -> None:
    for name, space in grids(model, part).items():
        total = Layout.of(space).chunks
        blocks(space, 0)  # names resolved, files read
        seconds, _ = cpu(lambda space=space, total=total: [Tally.of(blocks(space, i)) for i in range(total)])
        one = scalar_s(space)
        print(
            f"{name}: {space.points:,} points, {space.points / seconds:,.0f}/s of one core; scalar {1e3 * one:.1f} ms a point,"
            f" ratio {one * space.points / seconds:,.0f}"
        )
    table = Table.of(blocks(grids(model, part)["lengths"], 0), COLUMNS)
    for ending in ("csv", "parquet"):
        seconds, data = cpu(lambda ending=ending: encoded(table, ending))
        print(f"formatting alone, {ending}: {len(table) / seconds:,.0f} rows/s of one core, {len(data) / len(table):.0f} B a row")


def large(points: int) -> ip.Space:
    """A grid of about so many points of one model on one part, over four splits."""
    side = round((points / 4 / 512) ** 0.5)
    step = max(1, 8192 // side)
    return ip.Space(
        model="llama-3.1-70b", hardware="h100", precision="fp8", tp="1..8x2", batch="1..512",
        input_tokens=f"{step}..{step * side}+{step}", output_tokens=f"{step}..{step * side}+{step}", max_points=10**10,
    )  # fmt: skip


def watch(peaks: dict[int, float], ended: threading.Event) -> None:
    """The largest resident memory of each child of this process, in MiB, several times a second."""
    while not ended.wait(0.25):
        for entry in Path("/proc").iterdir():
            if entry.name.isdigit():
                note(peaks, entry)


def note(peaks: dict[int, float], entry: Path) -> None:
    try:
        fields = dict(line.split(":", 1) for line in (entry / "status").read_text().splitlines() if ":" in line)
        if int(fields["PPid"]) == os.getpid() and "VmHWM" in fields:
            peaks[int(entry.name)] = float(fields["VmHWM"].split()[0]) / KIB_PER_MIB
    except OSError:
        return


def on_dask(points: int, out: str, workers: int) -> None:
    space = large(points)
    target = Target.of(out, space.points)
    manifest = Manifest.of(space, COLUMNS, target.ending)
    pieces = Pieces.begin(target.folder, manifest)
    work = Writing(Chunk(space, space.digest()), manifest.columns, pieces.ending)
    todo = missing(pieces.done(), manifest.chunks)
    peaks, ended = {}, threading.Event()
    with dask_executor(jobs=workers) as executor:
        threading.Thread(target=watch, args=(peaks, ended), daemon=True).start()
        start, early = time.perf_counter(), 0.0
        for i, (number, piece) in enumerate(carry(work, todo, executor=executor)):
            pieces.put(number, piece)
            if i == len(todo) // 10:
                early = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / KIB_PER_MIB
        wall = time.perf_counter() - start
        ended.set()
    tally = finished([pieces], target, keep=True)
    size = sum(f.stat().st_size for f in target.folder.iterdir())
    print(f"{tally.points:,} points ({len(todo):,} chunks) on {workers} workers in {wall:.0f} s, {size / 1e9:.2f} GB")
    late = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / KIB_PER_MIB
    print(f"peak memory: here {early:.0f} MiB after a tenth, {late:.0f} MiB in the end;")
    print("children, workers among them,  " + ", ".join(f"{p:.0f}" for p in sorted(peaks.values(), reverse=True)) + " MiB")


def main() -> None:
    words = sys.argv[1:]
    if words[:1] == ["--dask"]:
        on_dask(int(float(words[1])), words[2], int(words[3]) if len(words) > 3 else 2)
        return
    rates(words[0] if words else "llama-3.1-70b", words[1] if len(words) > 1 else "h100")


if __name__ == "__main__":
    main()
