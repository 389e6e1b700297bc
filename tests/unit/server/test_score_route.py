"""POST /admin/score: logits as binary rows, computed as the reader takes them."""

from __future__ import annotations

import asyncio
import json
import struct
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from pathlib import Path

import httpx
import numpy as np
import pytest
from fake_worker import VOCABULARY, fake_logits
from pools import TEXTS
from servers import Server, fake_server, refused, until
from starlette.requests import ClientDisconnect
from starlette.testclient import TestClient
from toys import byte_tokens

from pitstop.config import EngineConfig, PoolConfig, ServerConfig
from pitstop.engine import protocol
from pitstop.errors import ConfigError, DeadlineExceeded
from pitstop.pool import Pool
from pitstop.server import Service, create_app
from pitstop.server.score import HEADER, MAX_AT_ONCE, Scoring, Wish, _Streamed

FAKE = (sys.executable, str(Path(__file__).parents[2] / "fake_worker.py"))
PROMPT = byte_tokens(b"The first position whose logits are wanted.")


def score(server: Server, **body) -> httpx.Response:
    return server.post("/admin/score", {"prompt": PROMPT} | body)


def rows_of(response: httpx.Response, start: int = 0) -> np.ndarray:
    """The rows of an answer whose header is right."""
    assert response.status_code == 200, response.text
    assert response.headers["content-type"] == "application/octet-stream"
    assert int(response.headers["content-length"]) == len(response.content)
    magic, version, vocabulary, rows, first, kind, what = struct.unpack("<8sIIIIII", response.content[:32])
    assert (magic, version, vocabulary, first, kind, what) == (b"PITSCORE", 1, VOCABULARY, start, 1, 1)
    return np.frombuffer(response.content, "<f4", offset=32).reshape(rows, vocabulary)


def test_it_is_off_by_default():
    app = create_app(Service(ServerConfig("toy")))
    assert not [path for path in app.openapi()["paths"] if path.startswith("/admin")]
    assert TestClient(app).post("/admin/score", json={"prompt": [5]}).status_code == 404


@pytest.mark.parametrize("start", [0, 7, len(PROMPT) - 1])
def test_the_rows_are_the_engines(server: Server, start: int):
    assert np.array_equal(rows_of(score(server, start=start), start), fake_logits(PROMPT, start))


def test_a_text_is_tokenised_as_completions_do(server: Server):
    tokens = server.post("/tokenize", {"prompt": "hello world"}).json()["tokens"]
    assert np.array_equal(rows_of(score(server, prompt="hello world")), fake_logits(tokens, 0))


@pytest.mark.parametrize(
    ("body", "field"),
    [
        ({"prompt": []}, "prompt"),
        ({"prompt": ""}, None),
        ({"prompt": [5, VOCABULARY]}, "prompt[1]"),
        ({"prompt": [5, -1]}, "prompt[1]"),
        ({"prompt": 5}, "prompt"),
        ({"prompt": [5] * 513}, "prompt"),
        ({"start": len(PROMPT)}, "start"),
        ({"start": -1}, "start"),
        ({"start": "0"}, "start"),
        ({"timeout": 61}, "timeout"),
        ({"timeout": 0}, "timeout"),
        ({"temperature": 1}, "temperature"),
    ],
)
def test_nonsense_is_refused_by_name(server: Server, body: dict, field: str | None):
    if field is None:
        assert len(rows_of(score(server, **body))) == 1  # BOS, as in completions
    else:
        refused(score(server, **body), 400, field)


def test_another_model_is_404(server: Server):
    refused(score(server, model="other"), 404, "model")


def test_only_so_many_rows(server: Server, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("pitstop.server.score.MAX_SCORED", 10)
    from pitstop.server.score import _prepare

    service, pool = _Facts(), _Facts()
    assert _prepare(service, pool, json.dumps({"prompt": [5] * 30, "start": 20}).encode(), 0.0).start == 20
    with pytest.raises(Exception, match="11 positions are asked for, 10 at most are answered") as error:
        _prepare(service, pool, json.dumps({"prompt": [5] * 30, "start": 19}).encode(), 0.0)
    assert error.value.field == "start"


class _Facts:
    """As much of a service and of a pool as preparing needs."""

    config = ServerConfig("toy")
    vocab_size, context, generates = VOCABULARY, 512, True

    @property
    def texts(self):
        return self

    @property
    def facts(self):
        return self

    tokenizer = None

    def check_model(self, name: str | None) -> None:
        assert name is None


def test_a_long_score_comes_in_parts_and_is_the_same():
    rows = 10
    with fake_server("--admin", "--max-logits", str(rows * 4 * VOCABULARY)) as server:
        assert np.array_equal(rows_of(score(server, start=3), 3), fake_logits(PROMPT, 3))
        assert server.metric("pitstop_requests_accepted_total") == -(-(len(PROMPT) - 3) // rows)
        assert server.metric('pitstop_requests_finished_total{reason="length"}') == 4


def test_a_queued_score_holds_its_place_until_its_reader_goes(server: Server):
    until(lambda: in_flight(server) == 0, 5)
    body = {"prompt": "#hold#", "start": 0}
    with pytest.raises(httpx.ReadTimeout):
        httpx.post(f"{server.url}/admin/score", json=body, timeout=0.5)
    until(lambda: in_flight(server) == 0, 5)
    assert server.alive()


def in_flight(server: Server) -> float:
    return server.metric('pitstop_requests{stage="queued"}') + server.metric('pitstop_requests{stage="running"}')


def test_its_time_can_be_up(server: Server):
    refused(score(server, prompt="#hold#", timeout=0.2), 504, code="deadline_exceeded")


def test_few_at_once(server: Server):
    until(lambda: in_flight(server) == 0, 5)
    with ThreadPoolExecutor(MAX_AT_ONCE) as threads:
        held = [threads.submit(score, server, prompt="#hold#", timeout=1) for _ in range(MAX_AT_ONCE)]
        until(lambda: in_flight(server) == MAX_AT_ONCE, 5)
        refused(score(server), 429, code="overloaded")
        for answer in held:
            refused(answer.result(), 504)
    assert len(rows_of(score(server))) == len(PROMPT)


def test_it_has_a_key_of_its_own():
    with fake_server("--admin", "--admin-key", "secret", "--key", "api", key="api") as server:
        assert "admin key" in refused(score(server), 401, code="invalid_api_key")
        assert server.alive()
        for key, admin, api in (("secret", 200, 401), ("api", 401, 200), ("other", 401, 401)):
            headers = {"Authorization": f"Bearer {key}"}
            assert server.http.post("/admin/score", json={"prompt": PROMPT}, headers=headers).status_code == admin
            assert server.http.get("/v1/models", headers=headers).status_code == api


def test_without_one_it_needs_what_the_api_needs():
    with fake_server("--admin", "--key", "api", key="api") as server:
        assert len(rows_of(score(server))) == len(PROMPT)
        assert httpx.post(f"{server.url}/admin/score", json={"prompt": PROMPT}).status_code == 401


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "192.168.1.2", "example.org"])
def test_beyond_loopback_it_needs_a_key(host: str):
    with pytest.raises(ConfigError, match=f"--admin on --host {host} needs a key: set PITSTOP_ADMIN_KEY"):
        ServerConfig("toy", host=host, admin=True)
    assert ServerConfig("toy", host=host, admin=True, admin_key="secret").admin
    for inner in ("127.0.0.1", "127.1.2.3", "::1", "localhost"):
        assert ServerConfig("toy", host=inner, admin=True).admin


@asynccontextmanager
async def small_parts(monkeypatch: pytest.MonkeyPatch, rows: int):
    """A pool before a worker without a model, and a score of all of PROMPT in parts of so many rows: (pool, wish with seconds to go)."""
    monkeypatch.setattr(protocol, "MAX_LOGITS", rows * 4 * VOCABULARY)
    pool = Pool(PoolConfig(), EngineConfig(model="toy"), TEXTS, command=FAKE)
    await pool.start()
    try:
        yield pool, lambda seconds: Wish(pool.served, PROMPT, 0, time.monotonic() + seconds)
    finally:
        await pool.close()
        pool.journal.check()


class Reader:
    """The ASGI side of a client: takes so many parts, then none until `go`."""

    def __init__(self, parts: int) -> None:
        self.data = b""
        self.complete = False
        self.stuck = asyncio.Event()
        self.go = asyncio.Event()
        self.leave = asyncio.Event()
        self._left = parts + 1  # the header comes before

    async def send(self, message: dict) -> None:
        if message["type"] == "http.response.start":
            return
        if not self._left:
            self.stuck.set()
            await self.go.wait()
        self._left = max(self._left - 1, 0)
        self.data += message["body"]
        self.complete = not message.get("more_body", False)

    async def receive(self) -> dict:
        await self.leave.wait()
        return {"type": "http.disconnect"}


def test_a_reader_that_stops_stops_the_computing(monkeypatch: pytest.MonkeyPatch):
    async def run() -> None:
        async with small_parts(monkeypatch, rows=4) as (pool, wish):
            reader = Reader(parts=2)
            answer = asyncio.create_task(_Streamed(Scoring(), pool, wish(30))({}, reader.receive, reader.send))
            await reader.stuck.wait()
            assert pool.journal.accepted == 3  # two taken, one offered; the engine has nothing to do
            assert not pool.journal.entries
            reader.go.set()
            await answer
            assert reader.complete
            assert np.array_equal(np.frombuffer(reader.data[HEADER.size :], "<f4").reshape(-1, VOCABULARY), fake_logits(PROMPT, 0))

    asyncio.run(asyncio.wait_for(run(), 30))


def test_a_reader_that_stops_for_good_is_left_at_its_deadline_or_when_it_goes(monkeypatch: pytest.MonkeyPatch):
    async def run() -> None:
        async with small_parts(monkeypatch, rows=4) as (pool, wish):
            scoring = Scoring()
            late = Reader(parts=1)
            await _Streamed(scoring, pool, wish(0.5))({}, late.receive, late.send)
            assert late.stuck.is_set()
            assert not late.complete
            gone = Reader(parts=1)
            answer = asyncio.create_task(_Streamed(scoring, pool, wish(30))({}, gone.receive, gone.send))
            await gone.stuck.wait()
            gone.leave.set()
            await answer
            assert not gone.complete
            early = Reader(parts=0)
            early.leave.set()
            with pytest.raises(ClientDisconnect):
                await _Streamed(scoring, pool, wish(30))({}, early.receive, early.send)
            with pytest.raises(DeadlineExceeded):
                await _Streamed(scoring, pool, wish(0))({}, late.receive, late.send)
            assert not pool.journal.entries
            assert scoring._under_way == 0

    asyncio.run(asyncio.wait_for(run(), 30))
