"""A server command, its manifest and its benchmark as text for a shell or for Kubernetes, and as a record. Knows no flag."""

from __future__ import annotations

import textwrap
from typing import Any

from inferplan.launch.benchmark import Benchmark
from inferplan.launch.command import Command
from inferplan.launch.manifest import Object, manifest_text
from inferplan.report.estimates import sentence

SCHEMA = "inferplan/launch/1"
WIDTH = 80
PARTS = ("server", "benchmark", "validate")


def record(command: Command, bench: Benchmark | None, objects: list[Object] | None) -> dict[str, Any]:
    """The commands word by word, the files they read, the objects of Kubernetes where these were asked for."""
    plan = command.plan
    checked = {"benchmark": list(bench.argv), "result": bench.result, "validate": list(bench.validate)} if bench else {}
    return {
        "schema": SCHEMA, "model": plan.e.model.name, "hardware": plan.e.hardware.name, "engine": plan.options.name,
        "engine_version": plan.options.release or None, "precision": plan.e.precision.name, "kv": plan.e.precision.kv.name,
        "checkpoint": plan.weights.name, "online": plan.weights.online or None, "nodes": plan.nodes.count,
        "gpus_per_node": plan.nodes.devices, "argv": list(map(str, command.argv)), "worker": list(map(str, command.worker)) or None,
        "join": [list(map(str, words)) for words in command.join] if any(command.join) else None, "env": dict(command.env),
        "files": dict(command.files), "remarks": list(command.remarks), **checked, "manifest": objects,
    }  # fmt: skip


def script(command: Command, bench: Benchmark | None, only: str | None = None) -> str:
    """What to type: the server on its nodes, then from another shell the benchmark, and the comparison with the plan.

    `only` is one of PARTS, alone and without a word beside it.
    """
    if only == "server" or (only is not None and bench is None):
        return _server(command)
    if only is not None and bench is not None:
        return bench.text if only == "benchmark" else bench.validate_text
    named = [comment(f"{name}: {what}") for name, what in command.env]
    blocks = [_headline(command), *([comment("Each node needs, in its environment:"), *named] if named else [])]
    return "\n".join([*blocks, "", _server(command), *(["", *_checked(bench)] if bench else [])])


def manifest(objects: list[Object], command: Command, bench: Benchmark | None) -> str:
    """The YAML, with the benchmark and the comparison as remarks below it."""
    text = manifest_text(objects).rstrip("\n")
    if bench is None:
        return "\n".join([_headline(command), text])
    lines = [line for part in (bench.text, bench.validate_text) for line in part.splitlines()]
    service, port = objects[-1]["metadata"]["name"], command.plan.port
    reached = f"kubectl port-forward service/{service} {port}:{port}"
    below = [comment("To check the plan, with the Service forwarded to this machine:"), "#", *(f"#   {line}" for line in (reached, *lines))]
    return "\n".join([_headline(command), text, *below])


def comment(text: str) -> str:
    """A text as lines of remarks in a script.

    >>> comment("one  two")
    '# one two'
    """
    lines = textwrap.wrap(" ".join(text.split()), WIDTH, initial_indent="# ", subsequent_indent="# ", break_on_hyphens=False)
    return "\n".join(lines) or "#"


def _headline(command: Command) -> str:
    e, plan = command.plan.e, command.plan
    over = f"{e.gpus} x {e.hardware.title}" + (f", {plan.nodes.count} nodes of {plan.nodes.devices}" if plan.nodes.count > 1 else "")
    return comment(f"{e.model.title} on {over}, {plan.options.said}.") + "\n" + comment(sentence(e))


def _server(command: Command) -> str:
    """The script of the first node, and of the others where there are any."""
    if not command.worker_script:
        return command.script
    first, others = comment("On the first node:"), comment("On each other node:")
    return "\n".join([first, command.script, "", others, command.worker_script])


def _checked(bench: Benchmark) -> list[str]:
    return [comment("To check the plan, from another shell:"), bench.text, "", comment("And beside the prediction:"), bench.validate_text]
