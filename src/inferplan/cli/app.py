"""The `inferplan` command: turns what was asked into an answer, and errors into one line and an exit code.

Exit codes: 0 done, 1 does not fit or no plan, 2 bad input, 130 interrupted. Loads nothing before it can answer an interrupt.
"""

from __future__ import annotations

import contextlib
import gc
import os
import sys
from collections.abc import Sequence

from inferplan.errors import InferplanError, OutputClosed

INTERRUPTED = 130  # 128 and the number of SIGINT, as shells report it
COMMANDS = {
    "estimate": "Memory and time of a model on a part, beside the physical floor.",
    "plan": "The cheapest fleet that carries a traffic within limits: parts, replicas, money, and what it hangs on.",
    "simulate": "Requests through an engine, step by step: latencies, batch and cache over time.",
    "load-curve": "Latency against offered load, its knee, and the largest rate that meets limits.",
    "batching": "Static against continuous batching under a load: throughput, latency and waste.",
    "launch": "The commands that start a deployment in its engine, and those that check it.",
    "quantize": "What formats of weights and cache save and cost: bytes, speed, room, money.",
    "speculate": "What speculative decoding gains, and from which batch it is a loss.",
    "sweep": "A grid of models, parts, formats, splits and loads, every point a row of a file.",
    "merge": "Put the shards of a sweep together.",
    "pareto": "The frontier of a sweep: throughput against speed, or cost against latency.",
    "compare": "The same load on several models, parts or precisions, side by side.",
    "plot": "Draw an estimate: roofline, breakdown, batch, context or memory, as PNG, SVG or PDF; says where other pictures are made.",
    "explain": "Open one number of an estimate: its equation, its inputs and their sources.",
    "list": "List hardware, models, formats or engines.",
    "show": "Show every number of a part, a model or a format, with its source.",
    "check": "Check a file of your own (YAML, config.json, GGUF, safetensors) and print what follows from it.",
    "import": "Write a model spec from a published config.json, a GGUF file or a Hub id.",
    "validate": "Compare predictions with known values in a case file.",
    "calibrate": "Fit efficiencies and overheads to the times of a case file of your own.",
}


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line and return its exit code."""
    if argv is not None:
        sys.argv = ["inferplan", *argv]
    try:
        _have_streams()
        if "_INFERPLAN_COMPLETE" in os.environ:
            from inferplan.cli.completion import asked

            return 0 if asked() else 2
        from inferplan.cli.group import answer

        code = answer(sys.argv[1:] or ["--help"])
        sys.stdout.flush()
    except InferplanError as e:
        return _say(str(e), e.exit_code)
    except (OutputClosed, BrokenPipeError):
        return _drop_output(0)
    except KeyboardInterrupt:
        return _say("interrupted", INTERRUPTED)
    except OSError as e:
        return _say(f"{e.filename or 'the output cannot be written'}: {os.strerror(e.errno or 0)}", _drop_output(2))
    return code


def _have_streams() -> None:
    """Something to write to where a stream is closed, and no text that it cannot take."""
    for name in ("stdout", "stderr"):
        if getattr(sys, name) is None:
            setattr(sys, name, open(os.devnull, "w", encoding="utf-8"))  # noqa: SIM115, PTH123 - for the rest of the process
        if reconfigure := getattr(getattr(sys, name), "reconfigure", None):
            reconfigure(errors="backslashreplace")


def _drop_output(code: int) -> int:
    """The code, once what is still to be written goes nowhere: else Python complains of it while it ends."""
    with contextlib.suppress(OSError, ValueError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    return code


def _say(message: str, code: int) -> int:
    with contextlib.suppress(OSError, ValueError):
        sys.stderr.write(f"inferplan: {message}\n")
        sys.stderr.flush()
    return code


def run() -> None:
    """The console script. One short command makes no garbage worth collecting, and taking modules down at the end costs a tenth of it."""
    gc.set_threshold(1_000_000, 50, 50)
    os.environ.setdefault("PYDANTIC_DISABLE_PLUGINS", "__all__")  # else pydantic looks through every installed package for some
    code = main()
    with contextlib.suppress(OSError, ValueError):
        sys.stderr.flush()
    os._exit(code)


if __name__ == "__main__":
    run()
