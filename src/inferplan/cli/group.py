"""The command group: which module answers which command. Loads a command when it is asked for, and does nothing else."""

from __future__ import annotations

import importlib
import sys
from typing import Any

import typer
from typer.core import TyperCommand, TyperGroup

from inferplan.cli.app import COMMANDS, INTERRUPTED
from inferplan.cli.examples import EXAMPLES, FIRST, paragraph
from inferplan.errors import InferplanError, OutputClosed, SpecError, near_misses, shown

HELP_OPTIONS = {"help_option_names": ["-h", "--help"], "max_content_width": 100}
EXIT_CODES = "Exit codes: 0 done; 1 does not fit, or no plan; 2 wrong input, in one line on stderr; 130 interrupted."


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
        return loaded(cmd_name)

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        """The command that is to run; one that is not there gives near misses."""
        if args and args[0] not in COMMANDS and not args[0].startswith("-"):
            told = near_misses(args[0], COMMANDS, cutoff=0.5)
            raise InferplanError(f"no command called '{shown(args[0])}'{told}; see 'inferplan --help'")
        return super().resolve_command(ctx, args)

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        """Each command with the whole of its line."""
        with formatter.section("Commands"):
            formatter.write_dl(list(COMMANDS.items()))

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


def loaded(name: str) -> Any:
    """A command in full, with the help text of all: plain, with examples and the exit codes below."""
    module = importlib.import_module(f"inferplan.cli.{name.replace('-', '_')}_command")
    command: Any = typer.main.get_command(module.app)
    command.name, command.epilog, command.rich_markup_mode = name, f"{paragraph(EXAMPLES[name])}\n\n{EXIT_CODES}", None
    command.context_settings = {**command.context_settings, **HELP_OPTIONS}
    return command


app = typer.Typer(
    cls=LazyGroup, no_args_is_help=True, add_completion=False, pretty_exceptions_enable=False, rich_markup_mode=None,
    epilog=f"{paragraph(FIRST)}\n\n{EXIT_CODES}", context_settings=HELP_OPTIONS,
    help="Roofline performance calculator and capacity planner for LLM inference.",
)  # fmt: skip


def _version(wanted: bool) -> None:
    if wanted:
        from importlib.metadata import version

        typer.echo(f"inferplan {version('inferplan')}")
        raise typer.Exit


def _print_completion(shell: str | None) -> None:
    if shell is not None:
        from inferplan.cli.completion import script

        typer.echo(script(shell), nl=False)
        raise typer.Exit


def _install_completion(shell: str | None) -> None:
    if shell is not None:
        from inferplan.cli.completion import install

        typer.echo(install(shell))
        raise typer.Exit


@app.callback()
def _main(
    version: bool = typer.Option(False, "--version", callback=_version, is_eager=True, help="Print the version and stop."),
    show: str | None = typer.Option(
        None, "--show-completion", metavar="SHELL", callback=_print_completion, is_eager=True,
        help="Print the completion of bash, zsh or fish.",
    ),
    install: str | None = typer.Option(
        None, "--install-completion", metavar="SHELL", callback=_install_completion, is_eager=True,
        help="Put the completion of bash, zsh or fish where the shell finds it.",
    ),
) -> None:  # fmt: skip
    """Roofline performance calculator and capacity planner for LLM inference."""


def answer(args: list[str]) -> int:
    """Run a command line and return its exit code; raises InferplanError for a wrong one, KeyboardInterrupt when interrupted."""
    try:
        result: Any = app(args=_helped(args), prog_name="inferplan", standalone_mode=False)
    except typer.Exit as e:
        return int(e.exit_code)
    except typer.Abort:
        raise KeyboardInterrupt from None
    except typer.TyperException as e:
        raise InferplanError(_usage(e, args)) from None
    except SpecError as e:
        raise _as_typed(e, args) from None
    if result == INTERRUPTED:
        raise KeyboardInterrupt
    return result if isinstance(result, int) else 0


RULES = (
    ("Input should be a valid integer", "must be a whole number"),
    ("Input should be a valid number", "must be a number"),
    ("Input should be greater than or equal to", "must be at least"),
    ("Input should be less than or equal to", "must be at most"),
)
"""What is said of a value that does not read, and how it is said here."""
EXAMPLE = "such as --model 7b --gpu h100"
FIELDS = {
    "input_tokens": "--isl",
    "output_tokens": "--osl",
    "patches": "--image-patches",
    "cpu_offload_bytes": "--cpu-offload",
    "arrivals": "--arrivals",
    "rate_per_s": "--rate",
    "peak_per_s": "--peak",
    "active_share": "--active",
    "requests_per_user_min": "--per-minute",
    "window_s": "--window",
    "growth_per_month": "--growth",
    "node_availability": "--availability",
    "max_replica_gpus": "--max-replica-gpus",
    "gpus": "--gpu",
    "kinds": "--price-type",
    "providers": "--provider",
    "prices": "--price",
    "hours_per_month": "--hours",
    "idle_share": "--idle-power",
    "api_usd_per_million": "--api-price",
    "input": "--input-lengths",
    "output": "--output-lengths",
    "tokens_per_s": "--replica-tokens",
}
"""Fields of the library and of files that an option gives under another name."""
MISSING = {"model": "--model", "slo": "--slo, such as ttft.p95=500ms,tpot.p95=50ms", "traffic": "--rate, --users or --trace"}
"""What a plan cannot be without, where no file gives it either."""


def _as_typed(e: SpecError, args: list[str]) -> SpecError:
    """An error about an argument under the option that gave it, or that would, where it is not in a file."""
    if e.file is not None or not e.field or e.field.startswith("-"):
        return e
    last = e.field.rpartition(".")[2]
    given = {word.partition("=")[0] for word in args if word.startswith("-")}
    option = FIELDS.get(last, f"--{last.replace('_', '-')}")
    if option in given:
        return SpecError(e.rule, field=option, value=e.value)
    if args[:1] == ["plan"] and e.field in MISSING and not any(word.endswith((".yaml", ".yml")) for word in args):
        return SpecError(f"{e.rule}; give {MISSING[e.field]}, or a file of goals", field=e.field, value=e.value)
    return e


def _usage(error: typer.TyperException, args: list[str]) -> str:
    """A wrong option or argument as one line: which, its value, the rule, and where to look."""
    text = " ".join(getattr(error, "format_message", lambda: str(error))().split()).rstrip(".").replace("Value error, ", "")
    name = getattr(getattr(error, "ctx", None), "info_name", None)
    options = getattr(getattr(error, "param", None), "opts", [])
    for said, rule in RULES:
        if said in text:
            bound = text.partition(said)[2].split(",")[0].strip()
            value = next((args[i + 1] for i, word in enumerate(args[:-1]) if word in options), None)
            shown_value = "" if value is None else f"{shown(value)}: "
            text = f"{max(options, key=len, default='a value')}: {shown_value}{rule}{f' {bound}' if bound else ''}"
    if "Missing option '--model'" in text or "Missing option '--gpu'" in text:
        text += f", {EXAMPLE}"
    if "Missing option '--draft'" in text:
        text += ", such as --draft eagle3, or a smaller model"
    return f"{text}; see 'inferplan {name} --help'" if name in COMMANDS else f"{text}; see 'inferplan --help'"


def _helped(args: list[str]) -> list[str]:
    """`inferplan help` and `inferplan help COMMAND` as the options that mean them."""
    if args[:1] != ["help"]:
        return args
    sys.argv[1:] = [*args[1:2], "--help"]
    return [*args[1:2], "--help"]
