"""`inferplan launch`: options in, commands, a script or a manifest out. Does no arithmetic."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any, cast

import typer

from inferplan.cli import options as o
from inferplan.errors import SpecError, Unsupported

if TYPE_CHECKING:
    from inferplan.launch.plan import Draft

app = typer.Typer(add_completion=False)
FORMS = ("shell", "kubernetes", "leaderworkerset")


@app.command()
@o.asks
def launch(
    asked: o.Asked,
    form: Annotated[str, typer.Option("--as", help="shell; kubernetes: Deployment, over nodes LeaderWorkerSet, and Service.")] = "shell",
    only: Annotated[str | None, typer.Option("--only", help="One part of the shell's commands: server, benchmark or validate.")] = None,
    hub_id: Annotated[str | None, typer.Option("--hub-id", help="The model on the Hub, where another is meant.")] = None,
    checkpoint: Annotated[str | None, typer.Option("--checkpoint", help="Weights in the planned format: Hub id, folder, .gguf.")] = None,
    draft: Annotated[str | None, typer.Option("--draft", help="Who drafts: a model, or eagle, eagle3, medusa, mtp, ngram.")] = None,
    draft_tokens: Annotated[int, typer.Option("--draft-tokens", help="Drafts per round.")] = 4,
    draft_checkpoint: Annotated[str | None, typer.Option("--draft-checkpoint", help="Weights of the draft: a Hub id or a path.")] = None,
    gpus_per_node: Annotated[
        int | None, typer.Option("--gpus-per-node", help="Devices of a node; unsaid: as many as the part's link joins.")
    ] = None,
    port: Annotated[int | None, typer.Option("--port", help="Port of the server; unsaid: the engine's own.")] = None,
    replicas: Annotated[int, typer.Option("--replicas", help="Copies behind one Service.")] = 1,
    name: Annotated[str | None, typer.Option("--name", help="Name of the objects in a manifest; unsaid: the model's.")] = None,
    image: Annotated[str | None, typer.Option("--image", help="Container image; unsaid: the release's own.")] = None,
    secret: Annotated[str, typer.Option("--secret", help="Secret whose key 'token' is the Hub token.")] = "hub-token",
    claim: Annotated[str | None, typer.Option("--claim", help="PersistentVolumeClaim for weights and downloads.")] = None,
    rate: Annotated[float | None, typer.Option("--rate", help="Requests per second of the benchmark.")] = None,
    concurrency: Annotated[int | None, typer.Option("--concurrency", help="Clients of the benchmark; unsaid: --batch.")] = None,
    requests: Annotated[int | None, typer.Option("--requests", help="Requests of the benchmark in all.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the words of all commands as JSON.")] = False,
) -> int:  # fmt: skip
    """Print the commands that start a deployment, and that check it.

    Flags are those that the engine's release documents; remarks go to the screen beside the commands. Where the deployment does not fit,
    there is no command and the exit code is 1.
    """
    from inferplan.launch.benchmark import launch_benchmark
    from inferplan.launch.command import launch_command
    from inferplan.report import files
    from inferplan.report.launch import manifest, record, script

    _check(form, only, replicas, name, image, claim)
    command = launch_command(
        asked.estimate(), asked=asked.model, release=asked.engine_version, hub_id=hub_id, checkpoint=checkpoint,
        draft=_draft(draft, draft_tokens, draft_checkpoint), gpus_per_node=gpus_per_node, port=port,
    )  # fmt: skip
    remarks = list(command.remarks)
    try:
        bench = launch_benchmark(command, asked=asked.model, rate_per_s=rate, concurrency=concurrency, requests=requests)
        remarks += bench.remarks
    except Unsupported as e:
        if only in ("benchmark", "validate"):
            raise
        bench = None
        remarks.append(f"no benchmark: {e}")
    objects = _objects(form, command, name=name, replicas=replicas, image=image, secret=secret, claim=claim)
    if as_json:
        typer.echo(files.json_text(record(command, bench, objects)))
        return 0
    typer.echo(script(command, bench, only) if objects is None else manifest(objects, command, bench))
    _remark(remarks)
    return 0


def _check(form: str, only: str | None, replicas: int, name: str | None, image: str | None, claim: str | None) -> None:
    from inferplan.report.launch import PARTS

    if form not in FORMS:
        raise SpecError(f"must be one of {', '.join(FORMS)}", field="--as", value=form)
    if only is not None and (only not in PARTS or form != "shell"):
        raise SpecError(f"must be one of {', '.join(PARTS)}, and goes with --as shell", field="--only", value=only)
    given = {"--name": name, "--image": image, "--claim": claim, "--replicas": replicas if replicas != 1 else None}
    for field, value in given.items() if form == "shell" else ():
        if value is not None:
            raise SpecError("says nothing for a shell: it goes with --as kubernetes", field=field, value=value)


def _draft(name: str | None, tokens: int, checkpoint: str | None) -> Draft | None:
    """Who drafts; a model by name is looked up for its Hub id."""
    from inferplan.launch.plan import Draft
    from inferplan.launch.weights import hub_ids
    from inferplan.readers.opening import open_model
    from inferplan.speculation.drafts import head_named

    if name is None:
        if checkpoint is not None:
            raise SpecError("says nothing without --draft", field="--draft-checkpoint", value=checkpoint)
        return None
    if (kind := head_named(name)) is not None:
        return Draft(cast(Any, kind), tokens, checkpoint or "")
    if checkpoint is None and "/" not in name and not name.lower().endswith(".gguf"):
        checkpoint = next(iter(hub_ids(open_model(name).model)), None)
    return Draft("model", tokens, checkpoint or name)


def _objects(form: str, command: Any, **told: Any) -> list[dict[str, Any]] | None:
    from inferplan.launch.manifest import launch_manifest

    if form == "shell":
        return None
    if form == "leaderworkerset" and command.plan.nodes.count == 1:
        raise SpecError("is for more than one node: this deployment takes one (--as kubernetes)", field="--as", value=form)
    return launch_manifest(command, **told)


def _remark(remarks: list[str]) -> None:
    """What is to be said of the commands, on stderr, so that stdout is a script or a manifest."""
    from inferplan.report.screen import console

    out = console(error=True)
    for text in remarks:
        out.print(text)
