"""The Hub reader against a local server that behaves, misbehaves or is silent."""

from __future__ import annotations

import json
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from inferplan.errors import InferplanError, SpecError, Unsupported
from inferplan.readers import hub

huggingface_hub = pytest.importorskip("huggingface_hub")
import huggingface_hub.constants as constants  # noqa: E402
import huggingface_hub.utils as hub_utils  # noqa: E402

COMMIT = "0123456789abcdef0123456789abcdef01234567"
CONFIG = {"model_type": "llama", "hidden_size": 64}
INDEX = {"metadata": {"total_size": 8}, "weight_map": {"w": "model-00001-of-00001.safetensors"}}
Reply = Callable[[BaseHTTPRequestHandler], None]


class Server(ThreadingHTTPServer):
    """Answers GET by a table of path endings; keeps what it was asked."""

    daemon_threads = True
    block_on_close = False

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.table: dict[str, Reply] = {}
        self.asked: list[tuple[str, str | None]] = []
        self.stop = threading.Event()

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A client that hangs up is the point of some tests."""


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: Server

    def do_GET(self) -> None:
        self.server.asked.append((self.path, self.headers.get("Authorization")))
        for ending, reply in self.server.table.items():
            if self.path.endswith(ending):
                return reply(self)
        return refuse(404, "EntryNotFound")(self)

    def log_message(self, *args: Any) -> None:
        pass


def answer(body: Any, *, length: int | None = None) -> Reply:
    data = body if isinstance(body, bytes) else json.dumps(body).encode()

    def reply(handler: BaseHTTPRequestHandler) -> None:
        handler.send_response(200)
        handler.send_header("X-Repo-Commit", COMMIT)
        handler.send_header("ETag", '"abc"')
        handler.send_header("Content-Length", str(len(data) if length is None else length))
        handler.end_headers()
        handler.wfile.write(data)
        handler.close_connection = length is not None

    return reply


def refuse(status: int, code: str | None = None) -> Reply:
    def reply(handler: BaseHTTPRequestHandler) -> None:
        handler.send_response(status)
        handler.send_header("X-Repo-Commit", COMMIT)
        handler.send_header("Content-Length", "0")
        if code:
            handler.send_header("X-Error-Code", code)
        handler.end_headers()

    return reply


def redirect(target: str) -> Reply:
    def reply(handler: BaseHTTPRequestHandler) -> None:
        handler.send_response(307)
        handler.send_header("Location", target)
        handler.send_header("X-Repo-Commit", COMMIT)
        handler.send_header("Content-Length", "0")
        handler.end_headers()

    return reply


def stream(piece: bytes, pause_s: float, *, headers_first: bool) -> Reply:
    """Pieces for as long as the client listens, 10 s and 100 MB at most: of the body, or of the headers."""

    def reply(handler: Any) -> None:
        handler.close_connection = True
        handler.wfile.write(b"HTTP/1.1 200 OK\r\n" + (b"\r\n" if headers_first else b""))
        for number in range(min(int(10 / pause_s) if pause_s else 10**6, 100 * 2**20 // len(piece))):
            if handler.server.stop.wait(pause_s):
                return
            handler.wfile.write(piece if headers_first else b"X-%d: 1\r\n" % number)

    return reply


@pytest.fixture
def server() -> Iterator[Server]:
    running = Server()
    thread = threading.Thread(target=running.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)
    thread.start()
    yield running
    running.stop.set()
    running.shutdown()
    running.server_close()
    thread.join(5)


@pytest.fixture(autouse=True)
def setup(server: Server, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[None]:
    close = getattr(hub_utils, "close_session", lambda: None)
    for name in ("http_proxy", "HTTP_PROXY", "all_proxy", "ALL_PROXY"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HF_TOKEN", "hf_secret")
    monkeypatch.setattr(constants, "ENDPOINT", f"http://127.0.0.1:{server.server_port}")
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    close()
    yield
    close()


def refusal(timeout_s: float = 2.0, repo: str = "org/name", **kwargs: Any) -> str:
    """The one line a fetch ends with, checked to be one line, in time, and without the token."""
    start = time.monotonic()
    with pytest.raises(InferplanError) as caught:
        hub.fetch_model(repo, timeout_s=timeout_s, **kwargs)
    assert time.monotonic() - start < timeout_s + 0.7
    text = str(caught.value)
    assert "\n" not in text
    assert len(text) < 400
    assert "hf_secret" not in text
    assert repo[:20] in text
    return text


def test_config_with_quantisation_and_index(server: Server) -> None:
    server.table = {"/config.json": answer(CONFIG), "/hf_quant_config.json": answer({"quantization": {}}), "index.json": answer(INDEX)}
    model = hub.fetch_model("org/name")
    assert model.config == CONFIG
    assert model.commit == COMMIT
    assert model.quantization == {"quantization": {}}
    assert model.index is not None
    assert model.index.total_bytes == 8
    assert model.unread == {}
    assert {token for _, token in server.asked} == {"Bearer hf_secret"}
    assert server.asked[0][0] == "/org/name/resolve/main/config.json"


def test_absent_files_are_none_and_asked_once(server: Server) -> None:
    server.table = {"/config.json": answer(CONFIG)}
    first = hub.fetch_model("org/name")
    assert (first.quantization, first.index, first.unread) == (None, None, {})
    assert len(server.asked) == 3
    assert hub.fetch_model("org/name") == first
    assert len(server.asked) == 3, "the second run must come from the cache"


def test_huggingface_hub_finds_what_was_kept(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    server.table = {"/config.json": answer(CONFIG)}
    hub.fetch_model("org/name")
    path = huggingface_hub.hf_hub_download("org/name", "config.json", local_files_only=True, cache_dir=constants.HF_HUB_CACHE)
    assert json.loads(Path(path).read_text()) == CONFIG
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    assert hub.fetch_config("org/name") == CONFIG


def test_a_revision_is_asked_for_and_kept_apart(server: Server) -> None:
    server.table = {"/resolve/refs%2Fpr%2F1/config.json": answer({"a": 1}), "/resolve/main/config.json": answer({"a": 2})}
    assert hub.fetch_config("org/name", revision="refs/pr/1") == {"a": 1}
    server.table.pop("/resolve/refs%2Fpr%2F1/config.json")
    assert hub.fetch_config("org/name", revision="refs/pr/1") == {"a": 1}


def test_a_redirect_is_followed_and_its_commit_kept(server: Server) -> None:
    plain = answer(CONFIG)
    server.table = {"/resolve/main/config.json": redirect("/api/cache/config"), "/api/cache/config": plain}
    assert hub.fetch_config("org/name") == CONFIG
    assert (Path(constants.HF_HUB_CACHE) / "models--org--name" / "snapshots" / COMMIT / "config.json").exists()


def test_the_token_does_not_follow_to_another_host(server: Server) -> None:
    other = Server()
    other.table = {"/config": answer(CONFIG)}
    thread = threading.Thread(target=other.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)
    thread.start()
    try:
        server.table = {"/config.json": redirect(f"http://127.0.0.1:{other.server_port}/config")}
        assert hub.fetch_config("org/name") == CONFIG
        assert other.asked == [("/config", None)]
    finally:
        other.shutdown()
        other.server_close()


@pytest.mark.parametrize(
    ("status", "code", "words"),
    [
        (401, "RepoNotFound", "there is no such model, or it is private"),
        (401, None, "HF_TOKEN"),
        (403, "GatedRepo", "the model is gated"),
        (404, "RepoNotFound", "there is no such model"),
        (404, "RevisionNotFound", "it has no revision 'main'"),
        (404, "EntryNotFound", "org/name/config.json: the model has no such file"),
        (404, None, "answered 404: there is no such model"),
        (429, None, "answered 429"),
        (500, None, "answered 500"),
        (503, None, "answered 503"),
    ],
)
def test_a_refusal_is_one_line_after_one_request(server: Server, status: int, code: str | None, words: str) -> None:
    server.table = {"/config.json": refuse(status, code)}
    assert words in refusal()
    assert len(server.asked) == 1


def test_a_failing_quantisation_file_is_not_taken_for_absent(server: Server) -> None:
    server.table = {"/config.json": answer(CONFIG), "/hf_quant_config.json": refuse(500)}
    assert "hf_quant_config.json: cannot be fetched" in refusal()


def test_a_failing_index_is_reported_beside_the_config(server: Server) -> None:
    server.table = {"/config.json": answer(CONFIG), "index.json": refuse(500)}
    model = hub.fetch_model("org/name")
    assert model.index is None
    assert "answered 500" in model.unread["model.safetensors.index.json"]


@pytest.mark.parametrize(
    ("body", "words"),
    [
        (answer(b"<html>sign in</html>"), "org/name/config.json: is not valid JSON"),
        (answer(b"[1, 2]"), "must hold a mapping"),
        (answer(b"\xff\xfe{}"), "is not UTF-8 text"),
        (answer(b""), "is not valid JSON"),
        (answer(b'{"a": 1, "a": 2}'), "a: stands twice"),
        (answer(b'{"a": 1', length=500), ""),
        (redirect("/org/name/resolve/main/config.json"), "edirect"),
        (redirect("file:///etc/passwd"), ""),
        (stream(b"x" * 65_536, 0, headers_first=True), "is larger than the 8 MiB read here"),
    ],
    ids=["html", "list", "utf16", "empty", "twice", "cut short", "redirect loop", "redirect to a file", "endless"],
)
def test_a_bad_body_is_one_line(server: Server, body: Reply, words: str) -> None:
    server.table = {"/config.json": body}
    assert words in refusal(timeout_s=5.0)
    assert not list(Path(constants.HF_HUB_CACHE).rglob("config.json")), "what cannot be read must not be kept"


@pytest.mark.parametrize("headers_first", [True, False])
def test_a_trickle_ends_at_the_deadline(server: Server, headers_first: bool) -> None:
    server.table = {"/config.json": stream(b" ", 0.1, headers_first=headers_first)}
    assert "did not answer in time" in refusal(timeout_s=0.6)


def test_a_silent_host_ends_at_the_deadline(monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.socket() as silent:
        silent.bind(("127.0.0.1", 0))
        silent.listen()
        monkeypatch.setattr(constants, "ENDPOINT", f"http://127.0.0.1:{silent.getsockname()[1]}")
        assert "cannot be fetched" in refusal(timeout_s=0.6)


def test_a_closed_port_is_one_line_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    monkeypatch.setattr(constants, "ENDPOINT", f"http://127.0.0.1:{port}")
    assert f"http://127.0.0.1:{port}" in refusal(timeout_s=1.0)


@pytest.mark.parametrize("endpoint", ["ftp://127.0.0.1", "not a url", "http://", "http://[::1", "http://127.0.0.1:99999"])
def test_a_bad_endpoint_is_one_line(monkeypatch: pytest.MonkeyPatch, endpoint: str) -> None:
    monkeypatch.setattr(constants, "ENDPOINT", endpoint)
    assert "cannot be fetched" in refusal(timeout_s=2.0)


def test_offline_asks_nothing(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    assert "HF_HUB_OFFLINE forbids" in refusal(timeout_s=1.0)
    assert server.asked == []


def test_offline_says_which_files_are_not_known(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    server.table = {"/config.json": answer(CONFIG)}
    hub.fetch_config("org/name")
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    assert set(hub.fetch_model("org/name").unread) == {"hf_quant_config.json", "model.safetensors.index.json"}


@pytest.mark.parametrize(
    "repo", ["", "../etc/passwd", "a/b/c", "a//b", "/etc/passwd", "org/na\nme", "org/name?x", "org/..", "x" * 300, "org/a--b"]
)
def test_a_bad_id_is_refused_before_any_request(server: Server, repo: str) -> None:
    with pytest.raises(SpecError, match="is not a Hub id"):
        hub.fetch_config(repo)
    assert server.asked == []
    assert not hub.is_repo_id(repo)


@pytest.mark.parametrize("revision", ["", "../../x", "a b", "a//b", "x" * 300, "main/", "a\nb"])
def test_a_bad_revision_is_refused_before_any_request(server: Server, revision: str) -> None:
    assert "is not a branch, tag or commit" in refusal(revision=revision)
    assert server.asked == []


def test_a_read_only_cache_does_not_matter(server: Server, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "plain").write_text("not a folder")
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "plain" / "cache"))
    server.table = {"/config.json": answer(CONFIG)}
    assert hub.fetch_config("org/name") == CONFIG


def test_without_the_library_it_says_how_to_install_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "huggingface_hub", None)
    with pytest.raises(Unsupported, match=r"pip install 'inferplan\[hub\]'"):
        hub.fetch_config("org/name")


def test_the_environment_is_honoured_in_a_fresh_process(server: Server, tmp_path: Path) -> None:
    server.table = {"/config.json": answer(CONFIG)}
    code = "from inferplan.readers.hub import fetch_config; import sys; sys.stdout.write(repr(fetch_config('org/name')))"
    env = {"HF_ENDPOINT": f"http://127.0.0.1:{server.server_port}/", "HF_HOME": str(tmp_path / "home"), "HF_TOKEN": "hf_other"}
    done = subprocess.run([sys.executable, "-c", code], env=env, capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout == repr(CONFIG)
    assert server.asked == [("/org/name/resolve/main/config.json", "Bearer hf_other")]
    offline = subprocess.run(
        [sys.executable, "-c", code], env={**env, "HF_HUB_OFFLINE": "1"}, capture_output=True, text=True, timeout=60, check=True
    )
    assert offline.stdout == repr(CONFIG)
    assert len(server.asked) == 1


def test_importing_the_reader_does_not_load_the_library() -> None:
    code = "import sys, inferplan.readers.hub; sys.exit('huggingface_hub' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], timeout=60, check=False).returncode == 0
