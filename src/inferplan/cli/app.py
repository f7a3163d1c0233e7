"""The `inferplan` command: finds the asked command, loads it, and turns errors into one line and an exit code.

Exit codes: 0 done, 1 does not fit or no plan, 2 bad input, 130 interrupted.
"""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Sequence
from typing import Any

import typer
from typer.core import TyperCommand, TyperGroup

from inferplan.errors import InferplanError

COMMANDS = {
    "estimate": "Memory and time of a model on a part, beside the physical floor.",
    "compare": "The same load on several models, parts or precisions, side by side.",
    "list": "List hardware, models, formats or engines.",
    "show": "Show every number of a part, a model or a format, with its source.",
    "check": "Check a file of your own (YAML, config.json, GGUF, safetensors) and print what follows from it.",
    "import": "Write a model spec from a published config.json, a GGUF file or a Hub id.",
    "validate": "Compare predictions with known values in a case file.",
}


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
        module = importlib.import_module(f"inferplan.cli.{cmd_name}_command")
        command = typer.main.get_command(module.app)
        command.name = cmd_name
        return command


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


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line and return its exit code."""
    if argv is not None:
        sys.argv = ["inferplan", *argv]
    try:
        result: Any = app(args=sys.argv[1:] or ["--help"], prog_name="inferplan", standalone_mode=False)
    except InferplanError as e:
        return _say(str(e), e.exit_code)
    except typer.Exit as e:
        return int(e.exit_code)
    except (typer.Abort, KeyboardInterrupt):
        return _say("interrupted", 130)
    except typer.TyperException as e:
        return _say(_usage(e), 2)
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    return result if isinstance(result, int) else 0


def _usage(error: typer.TyperException) -> str:
    """A wrong option or argument as one line that says where to look."""
    text = getattr(error, "format_message", lambda: str(error))().replace("\n", " ").rstrip(".")
    name = getattr(getattr(error, "ctx", None), "info_name", None)
    return f"{text}; see 'inferplan {name} --help'" if name in COMMANDS else f"{text}; see 'inferplan --help'"


def _say(message: str, code: int) -> int:
    typer.echo(f"inferplan: {message}", err=True)
    return code


def run() -> None:
    """The console script."""
    sys.exit(main())


if __name__ == "__main__":
    run()
