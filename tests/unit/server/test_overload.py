"""Too many at once: who is refused and when they may come back, gauges exact at scrape time, and what it costs everybody else: nothing."""

from __future__ import annotations

import asyncio
import json
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor

import httpx
import pytest
from servers import Server, assert_books_balance, fake_server, open_stream, refused, until

from pitstop.config import ServerConfig
from pitstop.errors import ConfigError

pytestmark = pytest.mark.alone


def test_case_29_gauges_are_exact_when_scraped(server: Server):
    with open_stream(server, "count #slow 20#") as events:
        next(events)
        assert server.metric("pitstop_requests_running") == 1
        assert server.metric("pitstop_requests_waiting") == 0
        with ThreadPoolExecutor(2) as threads:
            held = [threads.submit(server.complete, "#hold#", timeout=0.5) for _ in range(2)]
            until(lambda: server.metric("pitstop_requests_waiting") == 2, 0.5)
            assert server.metric("pitstop_requests_running") == 1
            assert all(answer.result().status_code == 504 for answer in held)
        assert server.metric("pitstop_requests_waiting") == 0
        assert_books_balance(server)


def test_case_29_tokenising_is_counted_and_blocks_nobody(server: Server):
    stage = 'pitstop_requests{stage="encoding"}'
    with ThreadPoolExecutor(1) as threads:
        long = threads.submit(server.complete, "hello world " * 300_000)
        until(lambda: server.metric(stage) == 1, 5)  # the event loop answers this while it is tokenised
        assert server.metric("pitstop_requests_waiting") == 1
        assert server.complete("#say quick#").json()["choices"][0]["text"] == "quick"
        assert not long.done()
        refused(long.result(), 400, code="context_length_exceeded")
    assert server.metric(stage) == 0


async def ask(port: int, body: bytes, head: bytes = b"") -> tuple[int, float, dict[str, str], dict]:
    """A request on a connection of its own: status, seconds, headers, body."""
    start = time.monotonic()
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nConnection: close\r\nContent-Type: application/json\r\n")
    writer.write(head + b"Content-Length: %d\r\n\r\n" % len(body) + body)
    head, _, content = (await reader.read()).partition(b"\r\n\r\n")
    writer.close()
    first, *lines = head.decode().split("\r\n")
    headers = {name.lower(): value for name, _, value in (line.partition(": ") for line in lines)}
    return int(first.split()[1]), time.monotonic() - start, headers, json.loads(content)


async def crowd(server: Server, size: int, prompt: str) -> tuple[list, list[float]]:
    """Their answers, and the seconds that /livez took meanwhile."""
    port = httpx.URL(server.url).port
    body = json.dumps({"model": server.model, "prompt": prompt, "max_tokens": 100}).encode()
    health: list[float] = []

    async def probe() -> None:
        async with httpx.AsyncClient(base_url=server.url) as client:
            while True:
                start = time.monotonic()
                assert (await client.get("/livez")).status_code == 200
                health.append(time.monotonic() - start)
                await asyncio.sleep(0.02)

    watch = asyncio.create_task(probe())
    answers = await asyncio.gather(*(ask(port, body) for _ in range(size)))
    watch.cancel()
    return answers, health


def test_case_26_five_hundred_at_once_over_a_bound_of_32():
    with fake_server("--max-waiting", "32") as server:
        for _ in range(3):
            server.complete("#say warm#")
        answers, health = asyncio.run(crowd(server, 500, "#slow 20##say a few words that take a while#"))
        taken = [answer for answer in answers if answer[0] == 200]
        excess = [answer for answer in answers if answer[0] != 200]
        assert 32 <= len(taken) < 200
        assert all(body["choices"][0]["text"] == "a few words that take a while" for _, _, _, body in taken)
        assert {status for status, *_ in excess} == {429}
        assert {body["error"]["code"] for *_, body in excess} == {"overloaded"}
        waits = Counter(int(headers["retry-after"]) for _, _, headers, _ in excess)
        assert 1 <= min(waits) <= max(waits) <= 60
        assert len(waits) > 1  # not everybody at the same time
        refusals = sorted(seconds for _, seconds, _, _ in excess)
        served = sorted(seconds for _, seconds, _, _ in taken)
        assert refusals[len(refusals) // 2] < served[-1]  # at once, before the accepted are through
        assert sorted(health)[len(health) // 2] < 0.25  # the clients share this machine
        assert server.metric('pitstop_requests_rejected_total{reason="requests"}') == len(excess)
        assert server.metric("pitstop_requests_accepted_total") == len(taken) + 3
        assert_books_balance(server)


def test_retry_after_follows_the_measured_rate():
    with fake_server("--max-waiting", "1") as server, ThreadPoolExecutor(1) as threads:
        held = threads.submit(server.complete, "#hold#", timeout=3)
        until(lambda: server.metric("pitstop_requests_waiting") == 1, 5)
        early = server.complete("x")
        assert "1 of 1 places" in refused(early, 429, code="overloaded")
        assert 1 <= int(early.headers["retry-after"]) <= 2
        until(lambda: server.metric("pitstop_oldest_waiting_seconds") > 2.2, 5)
        assert 3 <= int(server.complete("x").headers["retry-after"]) <= 6  # nobody has left the queue all this time
        refused(held.result(), 504)


def test_prompt_tokens_are_bounded_too():
    with fake_server("--max-waiting-tokens", "100") as server, ThreadPoolExecutor(1) as threads:
        held = threads.submit(server.complete, "#hold#" + "x" * 74, timeout=2)
        until(lambda: server.metric("pitstop_waiting_tokens") == 80, 5)
        answer = server.complete("#say this is too long for now#")
        assert "80 of 100 prompt tokens" in refused(answer, 429, code="overloaded")
        assert int(answer.headers["retry-after"]) >= 1
        assert server.complete("#say short#").status_code == 200
        refused(held.result(), 504)
        assert server.metric("pitstop_waiting_tokens") == 0
        assert server.metric('pitstop_requests_rejected_total{reason="tokens"}') == 1
        assert server.complete("x" * 200, max_tokens=1).status_code == 200  # alone, it is taken


def test_the_oldest_waiting_time_is_exact_when_scraped(server: Server):
    oldest = "pitstop_oldest_waiting_seconds"
    assert server.metric(oldest) == 0
    with ThreadPoolExecutor(2) as threads:
        start = time.monotonic()
        threads.submit(server.complete, "#hold#", timeout=0.6)
        until(lambda: server.metric("pitstop_requests_waiting") == 1, 2)
        threads.submit(server.complete, "#hold#", timeout=0.6)
        for _ in range(3):
            before = time.monotonic() - start
            assert before - 0.1 < server.metric(oldest) <= time.monotonic() - start
            time.sleep(0.05)
    assert server.metric(oldest) == 0


def test_a_request_that_waits_past_its_deadline_ends_then(server: Server):
    start = time.monotonic()
    refused(server.complete("#wedge 0#", timeout=0.3), 504, code="deadline_exceeded")
    assert 0.3 <= time.monotonic() - start < 1.0


def test_each_key_has_its_own_limit():
    with fake_server("--key", "one", "--key", "two", "--max-per-key", "2", key="one") as server:
        two = {"Authorization": "Bearer two"}
        with open_stream(server, "count #slow 20#"), open_stream(server, "count #slow 20#") as events:
            next(events)
            answer = server.complete("#say x#")
            assert "2 requests in flight" in refused(answer, 429, code="overloaded")
            assert 1 <= int(answer.headers["retry-after"]) <= 60
            assert httpx.get(server.url + "/v1/models", headers={"Authorization": "Bearer one"}).status_code == 200
            assert httpx.post(server.url + "/v1/completions", headers=two, json={"prompt": "#say x#", "model": "toy"}).status_code == 200
        until(lambda: server.complete("#say x#").status_code == 200, 5)  # a stream that its client left gives its place back
        assert server.metric('pitstop_requests_rejected_total{reason="key"}') >= 1
        assert server.metric('pitstop_requests_rejected_total{reason="requests"}') == 0


def test_a_limit_per_key_without_keys_is_refused():
    with pytest.raises(ConfigError, match="PITSTOP_API_KEYS"):
        ServerConfig("toy", max_per_key=1)
