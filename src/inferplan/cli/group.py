"""The command group: which module answers which command. Loads a command when it is asked for, and does nothing else."""

from __future__ import annotations

import importlib
import sys
from typing import Any

import typer
from typer.core import TyperCommand, TyperGroup

from inferplan.cli.app import COMMANDS, INTERRUPTED
from inferplan.errors import InferplanError, OutputClosed


class LazyGroup(TyperGroup):
    """Commands that are imported when they are asked for, so that `--help` loads none of them."""

    def list_commands(self, ctx: Any) -> list[str]:
        """The commands in the order of the table."""
        return list(COMMANDS)

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        """The command of that name: in full when it is to run, as a name with its help line when it is only listed."""
        if cmd_name not in COMMANDS:
            return None
        if cmd_name not in sys.argv[1:]:
            return TyperCommand(cmd_name, help=COMMANDS[cmd_name])
        module = importlib.import_module(f"inferplan.cli.{cmd_name.replace('-', '_')}_command")
        command = typer.main.get_command(module.app)
        command.name = cmd_name
        return command

    def make_context(self, *args: Any, **named: Any) -> Any:
        """The parsed command line, or the help text; a broken pipe must not reach typer, which ends with 1 there."""
        try:
            return super().make_context(*args, **named)
        except BrokenPipeError:
            raise OutputClosed from None

    def invoke(self, ctx: Any) -> Any:
        """Run the command; a broken pipe is a normal end, also where rich has turned it into an exit."""
        try:
            return super().invoke(ctx)
        except (BrokenPipeError, SystemExit):
            raise OutputClosed from None


app = typer.Typer(
    cls=LazyGroup, no_args_is_help=True, add_completion=True, pretty_exceptions_enable=False, rich_markup_mode=None,
    help="Roofline performance calculator and capacity planner for LLM inference.",
)  # fmt: skip


def _version(wanted: bool) -> None:
    if wanted:
        from importlib.metadata import version

        typer.echo(f"inferplan {version('inferplan')}")
        raise typer.Exit


@app.callback()
def _main(version: bool = typer.Option(False, "--version", callback=_version, is_eager=True, help="Print the version and stop.")) -> None:
    """Roofline performance calculator and capacity planner for LLM inference."""


def answer(args: list[str]) -> int:
    """Run a command line and return its exit code; raises InferplanError for a wrong one, KeyboardInterrupt when interrupted."""
    try:
        result: Any = app(args=args, prog_name="inferplan", standalone_mode=False)
    except typer.Exit as e:
        return int(e.exit_code)
    except typer.Abort:
        raise KeyboardInterrupt from None
    except typer.TyperException as e:
        raise InferplanError(_usage(e)) from None
    if result == INTERRUPTED:
        raise KeyboardInterrupt
    return result if isinstance(result, int) else 0


def _usage(error: typer.TyperException) -> str:
    """A wrong option or argument as one line that says where to look."""
    text = getattr(error, "format_message", lambda: str(error))().replace("\n", " ").rstrip(".")
    name = getattr(getattr(error, "ctx", None), "info_name", None)
    return f"{text}; see 'inferplan {name} --help'" if name in COMMANDS else f"{text}; see 'inferplan --help'"
