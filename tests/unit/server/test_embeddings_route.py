"""POST /v1/embeddings before a fake worker, whose vectors are drawn from the tokens."""

from __future__ import annotations

import asyncio
import base64
import json
import socket
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import httpx
import msgspec
import numpy as np
import openai
import pytest
from fake_worker import CACHED, CONTEXT, WIDTH, fake_vector
from pools import TEXTS
from servers import Server, assert_books_balance, fake_server, refused, until
from toys import byte_tokens

from pitstop.config import PoolConfig, ServerConfig
from pitstop.engine.protocol import Ready
from pitstop.errors import ConfigError, InvalidRequest, Unavailable
from pitstop.kv.capacity import Capacity
from pitstop.models.embedding import Embedding
from pitstop.pool import Delta, Served
from pitstop.server import Service
from pitstop.server.embeddings import Wish, _vectors, check_pooling, embedding_of
from pitstop.server.schema.embeddings import MAX_INPUTS
from pitstop.types import Request, SamplingParams

HELLO = byte_tokens(b"embed this")


@pytest.fixture(scope="module")
def embedder() -> Iterator[Server]:
    """Of a decoder whose files say how it embeds: the mean, normalised, WIDTH numbers or half of them."""
    with fake_server("--model", "embedder", "--admin") as server:
        yield server


def embed(server: Server, text: object = "embed this", **fields) -> httpx.Response:
    return server.post("/v1/embeddings", {"model": "toy", "input": text} | fields)


def vectors(response: httpx.Response) -> list[list[float]]:
    """In order, of an answer whose form is right."""
    assert response.status_code == 200, response.text
    body = response.json()
    assert set(body) == {"object", "data", "model", "usage"}
    assert (body["object"], body["model"]) == ("list", "toy")
    assert [item["index"] for item in body["data"]] == list(range(len(body["data"])))
    assert all(set(item) == {"object", "index", "embedding"} and item["object"] == "embedding" for item in body["data"])
    return [item["embedding"] for item in body["data"]]


def expected(tokens: list[int], pooling: str = "mean", length: int = WIDTH) -> list[float]:
    vector = fake_vector(tokens, pooling)[:length].astype(np.float64)
    return (vector / np.linalg.norm(vector)).astype(np.float32).tolist()


def test_a_text(embedder: Server):
    response = embed(embedder)
    assert vectors(response) == [expected(HELLO)]
    assert response.json()["usage"] == {"prompt_tokens": len(HELLO), "total_tokens": len(HELLO)}


def test_texts_and_tokens_alike(embedder: Server):
    texts = ["embed this", "and that", "<|im_start|>"]
    response = embed(embedder, texts)
    assert vectors(response) == [expected(byte_tokens(text.encode())) for text in texts]
    assert response.json()["usage"]["prompt_tokens"] == sum(map(len, texts))
    assert vectors(embed(embedder, HELLO)) == [expected(HELLO)]
    assert vectors(embed(embedder, [HELLO, [1, 2]])) == [expected(HELLO), expected([1, 2])]


def test_base64_holds_the_same_bits(embedder: Server):
    (packed,) = vectors(embed(embedder, encoding_format="base64"))
    assert np.frombuffer(base64.b64decode(packed), "<f4").tolist() == expected(HELLO)


def test_the_openai_client(embedder: Server):
    """It asks for base64 unless told otherwise, and unpacks it."""
    answer = embedder.openai.embeddings.create(model="toy", input=["embed this", "and that"])
    assert [item.embedding for item in answer.data] == [expected(HELLO), expected(byte_tokens(b"and that"))]
    assert [item.index for item in answer.data] == [0, 1]
    assert answer.usage.prompt_tokens == answer.usage.total_tokens == len("embed thisand that")
    plain = embedder.openai.embeddings.create(model="toy", input=HELLO, encoding_format="float", dimensions=4, user="me")
    assert plain.data[0].embedding == expected(HELLO, length=4)
    with pytest.raises(openai.BadRequestError, match="is empty") as raised:
        embedder.openai.embeddings.create(model="toy", input=["x", ""])
    assert raised.value.param == "input[1]"
    with pytest.raises(openai.NotFoundError):
        embedder.openai.embeddings.create(model="other", input="x")


def test_shorter_vectors_only_where_the_model_is_made_for_them(embedder: Server):
    assert vectors(embed(embedder, dimensions=WIDTH)) == [expected(HELLO)]
    assert vectors(embed(embedder, dimensions=WIDTH // 2)) == [expected(HELLO, length=WIDTH // 2)]
    for wrong in (1, 3, WIDTH + 1):
        assert "4 or 8 numbers" in refused(embed(embedder, dimensions=wrong), 400, "dimensions")
    refused(embed(embedder, dimensions=0), 400, "dimensions")


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"input": ""}, "input"),
        ({"input": []}, "input"),
        ({"input": [[]]}, "input[0]"),
        ({"input": ["x", ""]}, "input[1]"),
        ({"input": ["x", 1]}, "input[1]"),
        ({"input": [[1], "x"]}, "input[1]"),
        ({"input": None}, "input"),
        ({"input": 3}, "input"),
        ({"input": [1, -1]}, "input[1]"),
        ({"input": [[1], [1, 10**6]]}, "input[1][1]"),
        ({"input": "x" * (CONTEXT + 1)}, "input"),
        ({"input": ["x", "x" * (CONTEXT + 1)]}, "input[1]"),
        ({"input": ["x"] * (MAX_INPUTS + 1)}, "input"),
        ({"encoding_format": "hex"}, "encoding_format"),
        ({"dimensions": "4"}, "dimensions"),
        ({"timeout": 0}, "timeout"),
        ({"timeout": 10**6}, "timeout"),
        ({"stream": True}, "stream"),
        ({"input": "\ud800"}, "input"),
    ],
    ids=str,
)
def test_what_cannot_be_honoured_is_refused_by_name(embedder: Server, fields: dict, param: str):
    refused(embedder.post("/v1/embeddings", {"model": "toy", "input": "x"} | fields), 400, param)


def test_a_text_is_never_cut(embedder: Server):
    assert len(vectors(embed(embedder, "x" * CONTEXT))) == 1
    refused(embed(embedder, "x" * (CONTEXT + 1)), 400, "input", "context_length_exceeded")


def test_a_model_that_does_not_say_how_is_asked_to_be_told(server: Server):
    """The default of most chat models: the operator decides."""
    assert "--pooling" in refused(embed(server), 400, "model")
    with fake_server("--pooling", "last") as told:
        assert vectors(embed(told)) == [expected(HELLO, "last")]
        assert told.alive()


def test_an_encoder_embeds_and_nothing_else():
    with fake_server("--model", "embedder", "--health-interval", "0.1", "--", "--encoder") as server:
        assert vectors(embed(server)) == [expected(HELLO)]
        for response in (server.chat(), server.complete(), server.chat(stream=True)):
            assert "/v1/embeddings" in refused(response, 400, "model")
        until(lambda: server.metric('pitstop_health_probes_total{outcome="right"}') >= 2, 20)
        assert server.http.get("/healthz").json()["status"] == "ok"
        assert server.http.get("/v1/models").status_code == 200


def test_who_says_how():
    """The operator before the model's files."""
    stated = Embedding("mean", False, (4,))
    for wanted, files, how in (
        ("", stated, stated),
        ("last", stated, Embedding("last", False, (4,))),
        ("last", None, Embedding("last", True)),
    ):
        service = Service(ServerConfig("toy", pooling=wanted))
        assert embedding_of(service, Served(replace(TEXTS, embedding=files), None)) == how
    with pytest.raises(InvalidRequest, match="--pooling mean"):
        embedding_of(Service(ServerConfig("toy")), Served(TEXTS, None))


def test_what_makes_no_sense_does_not_start():
    decoder = Ready(1, CONTEXT, Capacity(1, 1, 1.0), 100)
    encoder = msgspec.structs.replace(decoder, generates=False)
    for wanted, stated, facts, complaint in (
        ("cls", None, decoder, "--pooling cls"),
        ("", Embedding("cls"), decoder, "--pooling cls"),
        ("", None, encoder, "choose --pooling mean, cls or last"),
    ):
        with pytest.raises(ConfigError, match=complaint):
            check_pooling(wanted, stated, facts)
    for wanted, stated, facts in (("", None, decoder), ("mean", None, decoder), ("cls", None, encoder), ("", Embedding("cls"), encoder)):
        check_pooling(wanted, stated, facts)


# Overload, ends, and what is known of it


@contextmanager
def held(server: Server, key: str) -> Iterator[None]:
    """A request that waits for ever, until its client goes."""
    body = json.dumps({"model": "toy", "input": "#hold#"}).encode()
    head = f"POST /v1/embeddings HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {key}\r\nContent-Type: application/json\r\n"
    with socket.create_connection(("127.0.0.1", int(server.url.rpartition(":")[2]))) as client:
        client.sendall(f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body)
        until(lambda: server.metric('pitstop_requests{stage="queued"}') == 1, 20)
        yield
    until(lambda: server.metric('pitstop_requests{stage="queued"}') == 0, 20)


def test_a_full_queue_and_a_busy_key_refuse():
    with fake_server("--model", "embedder", "--max-waiting", "1", "--key", "a", "--key", "b", "--max-per-key", "1", key="a") as server:
        with held(server, "a"):
            refused(embed(server), 429)
        with held(server, "b"):
            response = embed(server)
            refused(response, 429, code="overloaded")
            assert int(response.headers["Retry-After"]) >= 1
        assert len(vectors(embed(server))) == 1
        refused(httpx.post(f"{server.url}/v1/embeddings", json={"model": "toy", "input": "x"}), 401)


def test_deadlines_and_clients_that_go_free_everything(embedder: Server):
    refused(embed(embedder, ["x", "#hold#"], timeout=0.3), 504, code="deadline_exceeded")
    texts = ["#hold#"] * 3 + ["x"]
    with pytest.raises(httpx.ReadTimeout):
        embedder.http.post("/v1/embeddings", json={"model": "toy", "input": texts}, timeout=0.5)
    until(lambda: embedder.metric('pitstop_requests{stage="queued"}') == 0, 20)
    assert_books_balance(embedder)
    assert len(vectors(embed(embedder))) == 1


def test_one_text_that_fails_ends_them_all(embedder: Server):
    refused(embed(embedder, ["x", "#fail 0#", "#hold#"]), 500)
    until(lambda: embedder.metric('pitstop_requests{stage="queued"}') == 0, 20)
    assert "not finite" in refused(embed(embedder, [[0, 0]]), 500)


def test_a_dead_workers_texts_are_embedded_by_the_next():
    """Unless it is the text that kills it."""
    texts = ["one", "#upto 1##die 0#", *(f"text {number}" for number in range(20))]
    with fake_server("--model", "embedder") as server:
        assert vectors(embed(server, texts)) == [expected(byte_tokens(text.encode())) for text in texts]
        assert server.metric("pitstop_worker_restarts_total") == 1
        assert embed(server, ["one", "#crash 0#"]).status_code == 500
        until(lambda: embed(server).status_code == 200, 20)


class Stub:
    """A pool and a place in its queue, in which the model changes after so many texts."""

    admitted = None

    def __init__(self, served: Served, texts: int) -> None:
        self.facts, self._served, self._left = served.facts, served, texts

    def serves(self, served: Served) -> bool:
        return served is self._served

    @contextmanager
    def submit(self, requests: list[Request]) -> Iterator[Stub]:
        self._left -= 1
        if self._left == 0:
            self.facts = msgspec.structs.replace(self.facts, weights="others")
        yield self

    async def __aiter__(self):
        yield 0, Delta("", [], vector=b"v")


@pytest.mark.parametrize("after", [1, 5, 9])
def test_an_upgrade_between_texts_is_told(after: int):
    """All vectors of an answer come from one model."""
    served = Served(TEXTS, Ready(1, CONTEXT, Capacity(1, 1, 1.0), 100, weights="these"))
    requests = [Request(id=str(i), prompt=[1], params=SamplingParams(max_tokens=0), embed="mean") for i in range(9)]
    wish = Wish(served, requests, Embedding("mean"), None, False)
    changing, lasting = Stub(served, after), Stub(served, 100)
    with pytest.raises(Unavailable, match="one model"):
        asyncio.run(_vectors(changing, changing, wish, window=2))
    assert asyncio.run(_vectors(lasting, lasting, wish, window=2)) == [b"v"] * 9


def test_chats_go_on_beside_many_texts(embedder: Server):
    """A request of many texts takes turns with others. Each text takes the engine a millisecond, so that all of them take seconds."""
    texts = [f"#long 1#{number}" for number in range(MAX_INPUTS)]
    done = threading.Event()

    def background() -> httpx.Response:
        response = embed(embedder, texts)
        done.set()
        return response

    with ThreadPoolExecutor(1) as threads:
        many = threads.submit(background)
        until(lambda: embedder.metric('pitstop_requests{stage="running"}') > 0, 20)
        assert embedder.alive()
        assert not done.is_set()
        assert len(vectors(many.result())) == MAX_INPUTS


def test_the_access_line_and_a_small_queue(tmp_path: Path):
    """Texts of one request wait for each other, not for places."""
    options = "--model", "embedder", "--max-waiting", "4", "--log-format", "json", "--log-prompts"
    with fake_server(*options, log=tmp_path / "log") as server:
        embed(server, ["embed this", "x"])
        texts = [f"text {number}" for number in range(300)]
        assert vectors(embed(server, texts)) == [expected(byte_tokens(text.encode())) for text in texts]
        assert_books_balance(server)
    lines = [json.loads(line) for line in (tmp_path / "log").read_text().splitlines() if line.startswith("{")]
    line, _ = [line for line in lines if line.get("route") == "/v1/embeddings"]
    assert (line["status"], line["prompt_tokens"], line["completion_tokens"], line["finish"]) == (200, len("embed thisx"), 0, "stop")
    assert line["prompts"] == ["embed this", "x"]
    assert line["cached_tokens"] == 2 * CACHED
    assert line["queued_s"] <= line["admitted_s"] <= line["ended_s"]
    assert PoolConfig().max_waiting < MAX_INPUTS


def test_it_counts_as_requests_do(embedder: Server):
    before = embedder.metric('pitstop_requests_finished_total{reason="stop"}')
    vectors(embed(embedder, ["a", "b", "c"]))
    assert embedder.metric('pitstop_requests_finished_total{reason="stop"}') == before + 3
    assert embedder.metric('pitstop_http_responses_total{route="/v1/embeddings",status="200"}') > 0
