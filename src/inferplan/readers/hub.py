"""The small JSON files of a model on the Hugging Face Hub, through the optional huggingface_hub. Reads no weight, knows no Model.

Endpoint, token, cache folder and offline mode are those of huggingface_hub (`HF_ENDPOINT`, `HF_TOKEN`, `HF_HOME`,
`HF_HUB_OFFLINE`). A copy in its cache is used without asking the network. Otherwise each file is asked for once: no
retries, a limit on the size, and one deadline over everything.
"""

from __future__ import annotations

import contextlib
import os
import queue
import re
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar
from urllib.parse import quote

from inferplan.errors import InferplanError, SpecError, Unsupported
from inferplan.readers.safetensors import INDEX_NAME, MAX_HEADER_BYTES, Index, parse_index
from inferplan.specs.document import MAX_BYTES, parse_json, read_bytes

CONFIG_NAME = "config.json"
QUANTIZATION_NAME = "hf_quant_config.json"
_LIMITS = {CONFIG_NAME: MAX_BYTES, QUANTIZATION_NAME: MAX_BYTES, INDEX_NAME: MAX_HEADER_BYTES}
_PART = r"[A-Za-z0-9](?:[A-Za-z0-9._-]{0,94}[A-Za-z0-9_])?"
_REPO_ID = re.compile(rf"(?:{_PART}/)?{_PART}")
_LONGEST_ID = 200
_REVISION = re.compile(r"[A-Za-z0-9][A-Za-z0-9._/-]{0,199}")
_COMMIT = re.compile(r"[0-9a-f]{40}")
_OWN_SHARE = 0.9  # of the time allowed: the work itself should end first, since it knows what it waited for
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class HubModel:
    """What the Hub holds about a model, short of its weights.

    `quantization` is the content of hf_quant_config.json, `index` that of the weight index; each is None where the model
    has none. `unread` says of which of them that is not known, and why.
    """

    repo_id: str
    commit: str | None
    config: dict[str, Any]
    quantization: dict[str, Any] | None = None
    index: Index | None = None
    unread: dict[str, str] = field(default_factory=dict)


def is_repo_id(text: str) -> bool:
    """Whether a text has the form of a Hub id with an owner, `owner/name`.

    >>> is_repo_id("meta-llama/Llama-3.1-8B"), is_repo_id("./model"), is_repo_id("a/b/c"), is_repo_id("gpt2")
    (True, False, False, False)
    """
    return "/" in text and _well_formed(text)


def _well_formed(text: str) -> bool:
    """Whether the Hub could hold a repository of that name, with or without an owner."""
    return len(text) <= _LONGEST_ID and bool(_REPO_ID.fullmatch(text)) and ".." not in text and "--" not in text


def fetch_config(repo_id: str, *, revision: str | None = None, timeout_s: float = 5.0) -> dict[str, Any]:
    """The config.json of a model on the Hub. Raises like `fetch_model`."""
    source = _Source(repo_id, revision)
    return _bounded(source, timeout_s, lambda deadline: _required(source, deadline))


def fetch_model(repo_id: str, *, revision: str | None = None, timeout_s: float = 5.0) -> HubModel:
    """The config of a model on the Hub, with its quantisation file and its weight index where it has them.

    Returns or raises within `timeout_s` seconds all told. Raises Unsupported where huggingface_hub is not installed, and
    SpecError where the model cannot be had: offline, refused, unknown, not JSON, too large, or too slow.
    """
    source = _Source(repo_id, revision)
    config, others, unread = _bounded(source, timeout_s, lambda deadline: _all(source, deadline))
    return HubModel(repo_id, source.commit, config, others.get(QUANTIZATION_NAME), others.get(INDEX_NAME), unread)


def _all(source: _Source, deadline: float) -> tuple[dict[str, Any], dict[str, Any], dict[str, str]]:
    """The config, the other files (None: the model has none), and why any of them is unread."""
    config = _required(source, deadline)
    others: dict[str, Any] = {}
    unread: dict[str, str] = {}
    for name in (QUANTIZATION_NAME, INDEX_NAME):
        if source.offline and not source.decided(name):
            unread[name] = "not in the cache, and offline"
            continue
        try:
            others[name] = source.read(name, deadline)
        except SpecError as e:
            if name == QUANTIZATION_NAME:
                raise
            unread[name] = e.rule
    return config, others, unread


def _required(source: _Source, deadline: float) -> dict[str, Any]:
    if source.offline and not source.decided(CONFIG_NAME):
        raise SpecError("is not in the Hugging Face cache, and HF_HUB_OFFLINE forbids asking the Hub", file=source.label(CONFIG_NAME))
    config: dict[str, Any] | None = source.read(CONFIG_NAME, deadline)
    if config is None:
        raise SpecError("the model has no such file", file=source.label(CONFIG_NAME))
    return config


def _parsed(name: str, data: bytes, file: str) -> Any:
    """An Index, or the mapping of any other file."""
    if name == INDEX_NAME:
        return parse_index(data, file=file)
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError as e:
        raise SpecError(f"is not UTF-8 text (byte {e.start})", file=file) from None
    return parse_json(text, file=file, infinity=True)


# -------------------------------------------------------------------------------------------------------- one deadline


def _bounded(source: _Source, timeout_s: float, work: Callable[[float], T]) -> T:
    """What `work(deadline)` returns, or SpecError once the deadline has passed, whatever the network is doing.

    The work runs in a thread because a name look-up and a slow trickle of headers cannot be interrupted otherwise.
    """
    results: queue.Queue[tuple[bool, Any]] = queue.Queue(1)

    def run() -> None:
        try:
            results.put((True, work(time.monotonic() + _OWN_SHARE * timeout_s)))
        except BaseException as e:  # handed to the caller, who tells errors apart
            results.put((False, e))

    threading.Thread(target=run, daemon=True, name="inferplan-hub").start()
    try:
        done, value = results.get(timeout=timeout_s)
    except queue.Empty:
        raise _too_slow(source) from None
    if done:
        return value  # type: ignore[no-any-return]
    if isinstance(value, InferplanError) or not isinstance(value, Exception):
        raise value
    raise SpecError(f"cannot be fetched: {_reason(source, value)}", file=source.repo_id) from None


def _too_slow(source: _Source) -> SpecError:
    return SpecError(
        f"cannot be fetched: {source.endpoint} did not answer in time; a local config.json works without it", file=source.repo_id
    )


def _reason(source: _Source, error: Exception) -> str:
    text = " ".join(str(error).split())[:120] or type(error).__name__
    token = source.token()
    return f"{source.endpoint}: {text.replace(token, '***') if token else text}"


# --------------------------------------------------------------------------------------------------- cache and network


class _Source:
    """One model at one revision, as huggingface_hub is set up here."""

    def __init__(self, repo_id: str, revision: str | None) -> None:
        if not _well_formed(repo_id):
            raise SpecError("is not a Hub id of the form owner/name", value=repo_id)
        if revision is not None and (not _REVISION.fullmatch(revision) or ".." in revision or "//" in revision or revision.endswith("/")):
            raise SpecError("is not a branch, tag or commit", file=repo_id, field="revision", value=revision)
        self.repo_id, self.revision = repo_id, revision or "main"
        self.hub = _library(repo_id)
        self.endpoint = str(self.hub.constants.ENDPOINT).rstrip("/")
        self.offline = bool(self.hub.constants.HF_HUB_OFFLINE)
        self.commit: str | None = self.revision if _COMMIT.fullmatch(self.revision) else None

    def label(self, name: str) -> str:
        return f"{self.repo_id}/{name}"

    def token(self) -> str | None:
        if self.hub.constants.HF_HUB_DISABLE_IMPLICIT_TOKEN:
            return None
        return self.hub.get_token() or None

    def cached(self, name: str) -> Any:
        """The path of the copy in the cache, a mark that the model has no such file, or None where the cache does not know."""
        return self.hub.try_to_load_from_cache(self.repo_id, name, cache_dir=self.hub.constants.HF_HUB_CACHE, revision=self.revision)

    def decided(self, name: str) -> bool:
        return self.cached(name) is not None

    def read(self, name: str, deadline: float) -> Any:
        """The content of a file, or None where the model has no such file."""
        found = self.cached(name)
        if isinstance(found, str):
            self.commit = self.commit or Path(found).parent.name
            return _parsed(name, read_bytes(found, limit=_LIMITS[name]), found)
        if found is not None:
            return None
        data = self.download(name, deadline)
        content = None if data is None else _parsed(name, data, self.label(name))
        with contextlib.suppress(OSError):  # the copy only saves the next request
            self.keep(name, data)
        return content

    def download(self, name: str, deadline: float) -> bytes | None:
        url = f"{self.endpoint}/{self.repo_id}/resolve/{quote(self.revision, safe='')}/{name}"
        token = self.token()
        headers = {"Accept-Encoding": "identity", "User-Agent": "inferplan"} | ({"Authorization": f"Bearer {token}"} if token else {})
        left = deadline - time.monotonic()
        if left <= 0:
            raise _too_slow(self)
        with _answer(self.hub.utils.get_session(), url, headers, left) as (status, answer_headers, chunks):
            if status == 404 and answer_headers.get("x-error-code", "EntryNotFound" if self.commit else "") == "EntryNotFound":
                return None
            if status != 200:
                raise SpecError(_refusal(self, status, answer_headers.get("x-error-code", "")), file=self.label(name))
            commit = answer_headers.get("x-repo-commit", "")
            self.commit = commit if _COMMIT.fullmatch(commit) else self.commit
            return self.body(name, chunks, answer_headers.get("content-length"), deadline)

    def body(self, name: str, chunks: Iterator[bytes], stated: str | None, deadline: float) -> bytes:
        data = bytearray()
        for chunk in chunks:
            data += chunk
            if len(data) > _LIMITS[name]:
                raise SpecError(f"is larger than the {_LIMITS[name] // 1024**2} MiB read here", file=self.label(name))
            if time.monotonic() > deadline:
                raise _too_slow(self)
        if stated is not None and stated.isdecimal() and int(stated) != len(data):
            raise SpecError(f"arrived cut short ({len(data)} of {stated} bytes)", file=self.label(name))
        return bytes(data)

    def keep(self, name: str, data: bytes | None) -> None:
        """Put a file, or the mark that there is none, where huggingface_hub looks for it."""
        if not self.commit:
            return
        folder = Path(self.hub.constants.HF_HUB_CACHE) / f"models--{self.repo_id.replace('/', '--')}"
        _write(folder / (".no_exist" if data is None else "snapshots") / self.commit / name, data or b"")
        if self.revision != self.commit:
            _write(folder / "refs" / self.revision, self.commit.encode())


def _write(path: Path, data: bytes) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    draft = path.with_name(f"{path.name}.{os.getpid()}.{threading.get_ident()}.incomplete")
    draft.write_bytes(data)
    draft.replace(path)


def _library(repo_id: str) -> Any:
    """huggingface_hub, with the modules used here loaded."""
    try:
        import huggingface_hub
        import huggingface_hub.constants
        import huggingface_hub.utils
    except ImportError:
        rule = "is not a file here, and fetching it from the Hub needs huggingface_hub: pip install 'inferplan[hub]'"
        raise Unsupported(f"{repo_id}: {rule}") from None
    return huggingface_hub


@contextlib.contextmanager
def _answer(session: Any, url: str, headers: dict[str, str], timeout_s: float) -> Iterator[tuple[int, dict[str, str], Iterator[bytes]]]:
    """(status, headers with those of redirects, raw body) from huggingface_hub's session: httpx from version 1, requests before."""
    if callable(getattr(session, "stream", None)):  # a requests session has a flag of that name
        with session.stream("GET", url, headers=headers, timeout=timeout_s, follow_redirects=True) as answer:
            yield answer.status_code, _headers(answer), answer.iter_raw()
    else:
        with session.get(url, headers=headers, timeout=timeout_s, allow_redirects=True, stream=True) as answer:
            yield answer.status_code, _headers(answer), answer.raw.stream(65_536, decode_content=False)


def _headers(answer: Any) -> dict[str, str]:
    """Lower-case headers; the commit may stand on a redirect only."""
    found: dict[str, str] = {}
    for step in answer.history:
        found |= {k.lower(): v for k, v in step.headers.items() if k.lower() == "x-repo-commit"}
    return found | {k.lower(): v for k, v in answer.headers.items()}


def _refusal(source: _Source, status: int, code: str) -> str:
    """Why the Hub refused, in words."""
    said = f"cannot be fetched: {source.endpoint} answered {status}"
    if code == "GatedRepo":
        return f"{said}: the model is gated; accept its terms on the Hub and set HF_TOKEN"
    if code == "RevisionNotFound":
        return f"{said}: it has no revision {source.revision!r}"
    if status in (401, 403) or code == "RepoNotFound":
        return f"{said}: there is no such model, or it is private and HF_TOKEN does not open it"
    return f"{said}: there is no such model" if status == 404 else said
