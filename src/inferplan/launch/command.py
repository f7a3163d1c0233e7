"""The command that starts a planned deployment: words of a shell, files beside it, and what is to be said of it. Knows no screen."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from dataclasses import dataclass, replace

from inferplan.deployment import Estimate
from inferplan.errors import DoesNotFit, SpecError, Unsupported, shown
from inferplan.launch.engines import LEADER, RANK, TELLING, Told
from inferplan.launch.nodes import nodes
from inferplan.launch.plan import Draft, Plan
from inferplan.launch.table import Options, Variable, Wish, release_key
from inferplan.launch.weights import weights
from inferplan.quantization.support import refusal
from inferplan.shown import Shown

PORTS = {"sglang": 30000, "tgi": 3000, "llama.cpp": 8080}  # the default of each
USUAL_PORT = 8000  # and of the others
ONE_LINE = 72  # characters of a command that stays on a line
CONFIG = "trtllm-config.yaml"
NO_RELEASES = "1"  # what engines without numbered releases have as their newest one


@dataclass(frozen=True, slots=True)
class Command(Shown):
    """A server command.

    argv, worker
        words on the first node, and on each of the others; () where there are none.
    join
        commands that come before these on the first node and on the others, () for nothing.
    files
        names and texts of files that the command reads.
    env
        variables that each node needs beside the words, with what they mean.
    plan
        the estimate, the release's options, the weights and the nodes behind it.
    """

    argv: tuple[str, ...]
    worker: tuple[str, ...]
    join: tuple[tuple[str, ...], tuple[str, ...]]
    files: tuple[tuple[str, str], ...]
    env: tuple[tuple[str, str], ...]
    remarks: tuple[str, ...]
    plan: Plan

    @property
    def text(self) -> str:
        """The command of the first node for a shell, an option on each line."""
        return shell(self.argv)

    @property
    def script(self) -> str:
        """What a shell of the first node runs: files written, nodes joined, the server started."""
        return "\n".join([*(_written(*f) for f in self.files), *([shell(self.join[0])] if self.join[0] else []), self.text])

    @property
    def worker_script(self) -> str:
        """The same of each other node; '' where there is none."""
        lines = [*([shell(self.join[1])] if self.join[1] else []), *([shell(self.worker)] if self.worker else [])]
        return "\n".join(lines)


def launch_command(
    e: Estimate,
    *,
    asked: str = "",
    release: str | None = None,
    hub_id: str | None = None,
    checkpoint: str | None = None,
    draft: Draft | None = None,
    gpus_per_node: int | None = None,
    port: int | None = None,
) -> Command:
    """The command that starts a deployment in its engine, with flags that its release has.

    asked
        the name under which the model was opened; a Hub id or a path is the checkpoint meant.
    release
        of the engine, where the estimate's does not say it: a build of llama.cpp, such as `b6500`.
    hub_id, checkpoint
        the model's Hub id, where the catalog has none; a checkpoint in the planned format.

    Raises DoesNotFit for a deployment that does not, Unsupported for what the engine or this release cannot say, SpecError for a value
    out of range.

    >>> from inferplan.deployment import estimate
    >>> from inferplan.names import hardware, model, precision
    >>> found = estimate(model("llama-3.1-8b"), hardware("h100"), precision("bf16"), version="0.11.0")
    >>> launch_command(found).argv[:3], launch_command(found).argv[-2:]
    (('vllm', 'serve', 'meta-llama/Llama-3.1-8B-Instruct'), ('--max-num-batched-tokens', '8192'))
    """
    plan = _plan(e, asked, release, hub_id, checkpoint, draft, gpus_per_node, port)
    told = TELLING[plan.options.name](plan)
    config = [Wish("config", CONFIG)] if told.config else []
    program = plan.options.program("serve")
    argv = [*program, *plan.options.words("serve", [*told.wishes, *config, *told.leader])]
    worker = [*program, *plan.options.words("serve", [*told.wishes, *config, *told.worker])] if plan.nodes.count > 1 else []
    if plan.nodes.count > 1 and plan.options.name == "tensorrt-llm":
        argv, worker = [*_mpi(plan), *argv], []
    if told.join is not None:
        worker = []
    return Command(
        argv=tuple(argv),
        worker=tuple(worker),
        join=(tuple(told.join[0]), tuple(told.join[1])) if told.join else ((), ()),
        files=((CONFIG, _yaml(told.config)),) if told.config else (),
        env=_variables([*argv, *worker, *(told.join[1] if told.join else [])], plan),
        remarks=tuple(_remarks(plan, told)),
        plan=plan,
    )


def _plan(
    e: Estimate, asked: str, release: str | None, hub_id: str | None, checkpoint: str | None, draft: Draft | None, per_node: int | None,
    port: int | None,
) -> Plan:  # fmt: skip
    """What stands behind a command, once it can be one."""
    if e.engine.policy == "ideal":
        raise Unsupported(f"{e.engine.title} is no server: name one (--engine {', '.join(TELLING)})")
    if not e.fits:
        room = f"room for {e.max_sequences:,.0f} such requests at once, not {e.load.batch:,}"
        raise DoesNotFit(f"no command: {e.model.title} does not fit {e.hardware.title}: {e.capacity.reason() or room}")
    options = _options(e, release)
    if options.name not in TELLING:
        raise Unsupported(f"no commands of {e.engine.title} are known")
    _check(e, options, port)
    if draft is not None and draft.kind == "mtp" and e.model.mtp is None:
        raise Unsupported(f"{e.model.title} has no modules that predict further tokens (mtp)")
    found = weights(e.model, e.precision, options, asked=asked, hub_id=hub_id, checkpoint=checkpoint, vendor=e.hardware.vendor)
    port = port or PORTS.get(options.name, USUAL_PORT)
    return Plan(e, options, found, nodes(e, per_node), port, draft.checked() if draft else None)


def _options(e: Estimate, release: str | None) -> Options:
    """The options of a release as it was asked for, else of the one that the estimate took a month or another text for."""
    engine, told = e.engine, (release or "").strip()
    if engine.newest == NO_RELEASES or release_key(told):
        return Options.of(engine.name, engine.title, told)
    found = Options.of(engine.name, engine.title, engine.version)
    taken = f"'{shown(told)}' is taken for {engine.title} {engine.version}"
    return replace(found, remark="; ".join(t for t in (taken, found.remark) if t)) if told else found


def _check(e: Estimate, options: Options, port: int | None) -> None:
    """Raises for what no command can start: an encoder, a format that the engine does not run, a length beyond the model's."""
    if port is not None and not 1 <= port <= 65535:
        raise SpecError("must lie between 1 and 65,535", field="port", value=port)
    if not e.model.generates:
        raise Unsupported(f"{e.model.title} writes no tokens: commands are of servers that do")
    if why := refusal(e.engine, e.hardware, e.precision):
        raise Unsupported(why)
    length = int(e.capacity.launch.max_model_len)
    if e.model.context and length > e.model.context:
        raise Unsupported(f"{options.title} refuses requests of {length:,} tokens: {e.model.title} has a context of {e.model.context:,}")


def _mpi(plan: Plan) -> list[str]:
    """What starts one process per device over nodes under Slurm."""
    launcher = plan.options.needed("serve", "launcher", what="more than one node").value
    ranks = [f"--nodes={plan.nodes.count}", f"--ntasks={plan.e.gpus}", f"--ntasks-per-node={plan.nodes.devices}"]
    return ["srun", *ranks, "--mpi=pmix", launcher]


def _variables(words: Sequence[str], plan: Plan) -> tuple[tuple[str, str], ...]:
    """Environment variables among the words, and what they hold."""
    names = {word.name for word in words if isinstance(word, Variable)}
    said = {RANK: f"0 on the first node, up to {plan.nodes.count - 1} on the last", LEADER: "address of the first node"}
    return tuple((name, said[name]) for name in (LEADER, RANK) if name in names)


def _remarks(plan: Plan, told: Told) -> list[str]:
    e, found = plan.e, [plan.weights.remark]
    found += [r for r in (plan.options.remark, plan.nodes.remark) if r]
    found += told.remarks
    if plan.draft is not None:
        found.append("the draft's memory and gain are not in this plan: inferplan speculate answers for them")
    if "V0" in plan.options.release.split():
        found.append("core: the first one is chosen by VLLM_USE_V1=0 in the server's environment")
    if e.load.images:
        found.append("images: limits per prompt are left at the engine's defaults")
    if plan.nodes.count > 1 and plan.options.name == "tensorrt-llm":
        found.append("nodes: one process per device under Slurm; other launchers of MPI do as well")
    return found


def shell(words: Sequence[str]) -> str:
    r"""Words as a shell takes them, an option with its value on each line; variables are left to the shell.

    >>> print(shell(["vllm", "serve", "a/b", "--tensor-parallel-size", "8", "--gpu-memory-utilization", "0.9", "--headless"]))
    vllm serve a/b \
      --tensor-parallel-size 8 \
      --gpu-memory-utilization 0.9 \
      --headless
    """
    plain = " ".join(word.shell if isinstance(word, Variable) else shlex.quote(word) for word in words)
    if len(plain) <= ONE_LINE:
        return plain
    lines: list[list[str]] = [[]]
    for word in words:
        if _begins_option(word, lines):
            lines.append([])
        lines[-1].append(word.shell if isinstance(word, Variable) else shlex.quote(word))
    return " \\\n  ".join(" ".join(line) for line in lines)


def _begins_option(word: str, lines: list[list[str]]) -> bool:
    """Whether a word is an option that stands on a line of its own, rather than a number, or a launcher's before the program."""
    if isinstance(word, Variable) or not word.startswith("-") or word[1:2].isdigit():
        return False
    return lines[0] != ["python3"] and lines[0][:1] != ["srun"] or any(w.startswith("trtllm-serve") for w in lines[0])


def _written(name: str, text: str) -> str:
    """A shell command that writes a file: a quoted here-document, so that nothing in it is expanded."""
    end = "EOF"
    while end in text.splitlines():
        end += "F"
    return f"cat > {shlex.quote(name)} <<'{end}'\n{text}{end}"


def _yaml(config: dict[str, object]) -> str:
    import yaml

    text: str = yaml.safe_dump(config, sort_keys=False)
    return text
