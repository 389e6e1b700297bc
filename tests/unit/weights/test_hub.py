"""`pitstop models pull org/name` against a hub on this machine: what is fetched, going on after a cut, and errors that say what to do."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from hashlib import sha256
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import numpy as np
import pytest
import toy_gguf
from toy_folder import write_toy_folder

from pitstop.errors import ConfigError
from pitstop.models.weights import fetch, hub

REVISION = "0123456789abcdef0123456789abcdef01234567"


@dataclass
class Hub:
    """Repositories by id, each a folder. `cuts`: bytes after which the next transfers break off; `status`: what models answer."""

    root: Path
    url: str = ""
    cuts: list[int] = field(default_factory=list)
    status: int = 200
    reason: str = ""
    revision: str = REVISION
    digest: str = ""
    fetched: list[tuple[str, str | None]] = field(default_factory=list)

    def run(self, *arguments: str, home: Path | None = None, **environment: str) -> subprocess.CompletedProcess[str]:
        """The command line, with this hub."""
        settings = {"HF_ENDPOINT": self.url, "PITSTOP_HOME": str(home or self.root / "home"), "HF_HOME": str(self.root / "hf")}
        command = [sys.executable, "-m", "pitstop.cli", *arguments]
        return subprocess.run(command, env=os.environ | settings | environment, capture_output=True, text=True, timeout=120, check=False)


class Handler(BaseHTTPRequestHandler):
    hub: Hub

    def do_GET(self) -> None:
        path = self.path.partition("?")[0]
        if match := re.fullmatch(r"/api/models/([^/]+/[^/]+)", path):
            return self.describe(self.hub.root / match[1])
        match = re.fullmatch(rf"/([^/]+/[^/]+)/resolve/{self.hub.revision}/(.+)", path)
        file = self.hub.root / match[1] / match[2] if match else None
        return self.send_file(file) if file and file.is_file() else self.refuse(404, "EntryNotFound")

    def refuse(self, status: int, reason: str) -> None:
        self.send_response(status)
        self.send_header("X-Error-Code", reason)
        self.send_header("Content-Length", "0")
        self.end_headers()

    def describe(self, folder: Path) -> None:
        if self.hub.status != 200:
            return self.refuse(self.hub.status, self.hub.reason)
        if not folder.is_dir():
            return self.refuse(404, "RepoNotFound")
        files = [file for file in sorted(folder.rglob("*")) if file.is_file()]
        body = json.dumps(
            {"id": folder.name, "sha": self.hub.revision, "siblings": [self.sibling(folder, file) for file in files]}
        ).encode()
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        return self.wfile.write(body) and None

    def sibling(self, folder: Path, file: Path) -> dict[str, object]:
        stated = {"rfilename": str(file.relative_to(folder)), "size": file.stat().st_size}
        if file.suffix not in (".safetensors", ".gguf"):
            return stated
        return stated | {
            "lfs": {"size": stated["size"], "sha256": self.hub.digest or sha256(file.read_bytes()).hexdigest(), "pointerSize": 1}
        }

    def send_file(self, file: Path) -> None:
        content, asked = file.read_bytes(), self.headers["Range"]
        start = int(re.fullmatch(r"bytes=(\d+)-", asked)[1]) if asked else 0
        self.send_response(206 if asked else 200)
        if asked:
            self.send_header("Content-Range", f"bytes {start}-{len(content) - 1}/{len(content)}")
        self.send_header("Content-Length", str(len(content) - start))
        self.end_headers()
        self.hub.fetched.append((file.name, asked))
        self.wfile.write(content[start:][: self.hub.cuts.pop(0) if self.hub.cuts else None])

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def host(tmp_path: Path) -> Iterator[Hub]:
    held = Hub(tmp_path)
    server = ThreadingHTTPServer(("127.0.0.1", 0), type("Bound", (Handler,), {"hub": held}))
    held.url = f"http://127.0.0.1:{server.server_port}"
    thread = threading.Thread(target=server.serve_forever, args=(0.01,))
    thread.start()
    yield held
    server.shutdown()
    thread.join()
    server.server_close()


@pytest.fixture
def sharded(host: Hub) -> Path:
    """A model in two shards beside what we do not read."""
    (host.root / "org").mkdir()
    folder = write_toy_folder(host.root / "org" / "toy", 2)
    for name in ("README.md", "pytorch_model.bin", "consolidated.safetensors", "original/params.json"):
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_text("not for us")
    return folder


def one_line(result: subprocess.CompletedProcess[str]) -> str:
    assert result.returncode == 1
    assert result.stdout == ""
    assert result.stderr.count("\n") == 1, result.stderr
    return result.stderr


def test_what_is_read_is_fetched_once(host: Hub, sharded: Path) -> None:
    result = host.run("models", "pull", "org/toy")
    assert result.returncode == 0, result.stderr
    folder = Path(result.stdout.strip())
    assert folder == host.root / "home" / "models" / "org" / "toy"
    names = {"config.json", "tokenizer.json", "model.safetensors.index.json"}
    names |= {f"model-0000{shard}-of-00002.safetensors" for shard in (1, 2)}
    assert {file.name for file in folder.iterdir() if file.is_file()} == names | {".complete", ".revision"}
    assert all((folder / name).read_bytes() == (sharded / name).read_bytes() for name in names)
    assert {name for name, _ in host.fetched} == names
    host.status = 500  # not asked again, hub or no hub
    assert host.run("models", "pull", "org/toy").stdout == result.stdout
    assert len(host.fetched) == len(names)


def test_a_broken_transfer_goes_on(host: Hub) -> None:
    """In the same run, and in a later one."""
    content = np.random.default_rng(0).bytes(300_000)
    (host.root / "org" / "large").mkdir(parents=True)
    (host.root / "org" / "large" / "a.gguf").write_bytes(content)
    host.cuts = [100_000, 50_000, 0]
    assert "run it again, it goes on where it stopped" in one_line(host.run("models", "pull", "org/large/a.gguf"))
    assert not (host.root / "home" / "models" / "org" / "large" / "a.gguf").exists()
    result = host.run("models", "pull", "org/large/a.gguf")
    assert Path(result.stdout.strip()).read_bytes() == content
    assert [asked for _, asked in host.fetched] == [None, "bytes=100000-", "bytes=150000-", "bytes=150000-"]


def test_another_revision_is_fetched_anew(host: Hub, sharded: Path) -> None:
    """What an interrupted run left of an older one is not mixed with it."""
    host.cuts = [10**9] * 3 + [0]
    one_line(host.run("models", "pull", "org/toy"))
    kept = len(host.fetched) - 1
    host.revision = REVISION[::-1]
    assert host.run("models", "pull", "org/toy").returncode == 0
    assert len(host.fetched) == kept + 1 + kept + 2


def test_wrong_bytes_are_not_kept(host: Hub, sharded: Path) -> None:
    host.digest = "0" * 64
    error = one_line(host.run("models", "pull", "org/toy"))
    assert "the bytes are wrong" in error
    assert not list((host.root / "home" / "models" / "org" / "toy").glob("model-*"))


def test_one_gguf_file(host: Hub) -> None:
    (host.root / "org" / "files").mkdir(parents=True)
    for kind in ("F16", "Q4_0"):
        toy_gguf.write_toy_gguf(host.root / "org" / "files" / f"toy-{kind}.gguf", kind)
    assert one_line(host.run("models", "pull", "org/files")) == (
        "pitstop: org/files holds GGUF files; pull one of them: org/files/toy-F16.gguf, org/files/toy-Q4_0.gguf\n"
    )
    result = host.run("models", "pull", "org/files/toy-Q4_0.gguf")
    assert Path(result.stdout.strip()).read_bytes() == (host.root / "org" / "files" / "toy-Q4_0.gguf").read_bytes()
    assert "holds no toy-Q8_0.gguf; it holds org/files/toy-F16.gguf" in one_line(host.run("models", "pull", "org/files/toy-Q8_0.gguf"))


LAYOUTS = {
    "leaves": [*(f"ckpt-0/tensor0000{i}_000" for i in range(3)), "tokenizer.json"],
    "published-leaves": [*(f"ckpt-0/tensor0000{i}_000" for i in range(3)), "tokenizer.model"],
    "parallel": ["config.json", "tokenizer.tok.json", "m-0-TP-common.safetensors", *(f"m-1-TP-00{i}.safetensors" for i in range(2))],
}
"""Of the published Groks."""


@pytest.mark.parametrize("layout", LAYOUTS)
def test_other_layouts_of_folders(host: Hub, layout: str) -> None:
    folder, names = host.root / "org" / layout, LAYOUTS[layout]
    for name in [*names, "README.md", "run.py", "tokenizer.model", "ckpt-0/notes", "other/tensor00000_000"]:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(f"{{}} {name}")
    result = host.run("models", "pull", f"org/{layout}")
    assert result.returncode == 0, result.stderr
    assert {name for name, _ in host.fetched} == {Path(name).name for name in names}
    pulled = Path(result.stdout.strip())
    assert all((pulled / name).read_bytes() == (folder / name).read_bytes() for name in names)


def test_a_model_in_no_form_that_we_read(host: Hub) -> None:
    (host.root / "org" / "old").mkdir(parents=True)
    (host.root / "org" / "old" / "pytorch_model.bin").touch()
    assert "org/old holds no config.json with model.safetensors" in one_line(host.run("models", "pull", "org/old"))


@pytest.mark.parametrize(
    ("status", "code", "message"),
    [
        (404, "RepoNotFound", "no such file or folder here, and no such model at"),
        (403, "GatedRepo", "its terms must be accepted at"),
        (500, "", "answered with HTTP 500"),
    ],
)
def test_a_hub_that_refuses(host: Hub, status: int, code: str, message: str) -> None:
    host.status, host.reason = status, code
    assert message in one_line(host.run("models", "pull", "org/toy"))


def test_no_hub(host: Hub) -> None:
    for settings in ({"HF_ENDPOINT": "http://127.0.0.1:9"}, {"HF_HUB_OFFLINE": "1"}):
        error = one_line(host.run("serve", "org/toy", **settings))
        assert error.startswith("pitstop: org/toy: no such file or folder here, and the hub at http://127.0.0.1:")
        assert "pass a folder with config.json and *.safetensors, or a .gguf file" in error


@pytest.mark.parametrize("name", ["org/name", "org/name-1.5", "org/name/file.gguf", "org/name/sub/file.Q4_K_M.gguf"])
def test_ids(name: str) -> None:
    assert hub.is_id(name)


@pytest.mark.parametrize("name", ["name", "./name", "/org/name", "~/name", "../name", "org/file.gguf", "org/name/config.json", "org//name"])
def test_what_is_no_id(name: str) -> None:
    assert not hub.is_id(name)
    if name != "name":
        with pytest.raises(ConfigError):
            fetch.pull(name)


def test_a_path_goes_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "org").mkdir()
    write_toy_folder(tmp_path / "org" / "toy")
    assert fetch.pull("org/toy") == Path("org/toy")
    (tmp_path / "org" / "empty").mkdir()
    with pytest.raises(ConfigError, match=r"a folder without config\.json"):
        fetch.pull("org/empty")
