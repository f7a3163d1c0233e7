"""What can go wrong, as types: bad input, unknown names, unsupported architectures, loads that do not fit.

Knows no file format and no screen: the command line turns each into one line and an exit code.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

_LONGEST_VALUE = 80
_LONGEST_PATH = 240


def escaped(text: str) -> str:
    r"""A text in which newlines, control characters and direction marks stand as escapes, so that it stays one honest line.

    >>> escaped("a\nb" + chr(0x202E) + "c")
    'a\\nb\\u202ec'
    """
    return text if text.isprintable() else "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)


def shown(value: Any) -> str:
    """A value as it may stand in a one-line message: no newline, never longer than 80 characters.

    >>> shown("a" * 100)[-6:], shown(3)
    ('aaa...', '3')
    """
    text = value if isinstance(value, str) else repr(value)
    text = escaped(text[: _LONGEST_VALUE + 1])
    return text if len(text) <= _LONGEST_VALUE else text[: _LONGEST_VALUE - 3] + "..."


def shown_path(path: Any) -> str:
    """A path as it may stand in a message: a long one loses its beginning, so that the file name stays.

    >>> shown_path("/a" * 160 + "/x.yaml")[:7], shown_path("models/x.yaml")
    ('.../a/a', 'models/x.yaml')
    """
    text = escaped(str(path))
    return text if len(text) <= _LONGEST_PATH else "..." + text[-(_LONGEST_PATH - 3) :]


def near_misses(text: str, names: Iterable[str], *, n: int = 3, cutoff: float = 0.6) -> str:
    """What is added to a message that a name is not known: up to `n` names near it, or nothing.

    >>> near_misses("tpto", ["tpot", "ttft", "weights"]), near_misses("xyz", ["tpot"])
    ('; near it: tpot', '')
    """
    from difflib import get_close_matches

    near = get_close_matches(text, list(names), n=n, cutoff=cutoff)
    return f"; near it: {', '.join(near)}" if near else ""


class InferplanError(Exception):
    """Base of every error that is the user's to mend; `exit_code` is what the command line ends with."""

    exit_code = 2

    def __init__(self, message: str) -> None:
        super().__init__(escaped(message))

    def _render_traceback_(self) -> list[str]:
        """What IPython prints in place of a traceback: the line itself, which says what to mend."""
        return [f"{type(self).__name__}: {self}"]


class OutputClosed(Exception):  # noqa: N818 - not an error: the reader has seen enough
    """Whoever read the output has gone, as `head` does: the command ends, and nothing is wrong."""


class SpecError(InferplanError):
    """A file or a value breaks a rule. The message names file, field, value and rule, each where known.

    >>> str(SpecError("needs a unit, such as '3.35 TB/s'", file="x.yaml", field="memory.bandwidth", value=3.35))
    "x.yaml: memory.bandwidth: 3.35: needs a unit, such as '3.35 TB/s'"
    """

    def __init__(self, rule: str, *, file: Any = None, field: str | None = None, value: Any = None) -> None:
        self.rule, self.file, self.field, self.value = rule, file, field, value
        parts = [None if file is None else shown_path(file), field and shown(field)]
        parts += [None if value is None else shown(value), rule]
        super().__init__(": ".join(p for p in parts if p))

    def within(self, file: Any) -> SpecError:
        """The same error, naming the file it came from."""
        return self if self.file is not None else SpecError(self.rule, file=file, field=self.field, value=self.value)


class NotFound(InferplanError):
    """A name is not in the catalog; the message lists near misses."""


class Unsupported(InferplanError):
    """The input is well formed, but asks for something inferplan does not model; it says what is missing."""


class DoesNotFit(InferplanError):
    """The load does not fit the memory."""

    exit_code = 1


class NoFeasiblePlan(InferplanError):
    """No candidate meets the goal."""

    exit_code = 1
