"""/admin/upgrade, and `pitstop upgrade` against it, before fake workers."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest
from pools import running_pool, toy_model
from servers import Server, assert_books_balance, fake_server, refused, until
from typer.testing import CliRunner

from pitstop.cli import app
from pitstop.cli.upgrade import _line
from pitstop.config import ServerConfig
from pitstop.errors import InvalidRequest, PitstopError
from pitstop.pool import Pool, Served
from pitstop.server import Service
from pitstop.server.generation import for_served

ENDS = ("done", "rolled_back", "cancelled")


@pytest.fixture
def server() -> Iterator[Server]:
    with fake_server("--admin") as server:
        yield server


def state(server: Server) -> dict:
    return server.http.get("/admin/upgrade").json()


def upgraded(server: Server, **wish) -> dict:
    response = server.post("/admin/upgrade", wish)
    assert response.status_code == 202, response.text
    until(lambda: state(server)["state"] in ENDS, 20)
    return state(server)


def test_it_begins_tells_and_ends(server: Server):
    assert state(server) == {"state": "none"}
    refused(server.http.delete("/admin/upgrade"), 409, code="no_upgrade")
    report = upgraded(server, model="toy2", kv="int8", max_kl=0.5, threads=1)
    assert (report["state"], report["reason"], report["workers"]) == ("done", None, {"replaced": 1, "of": 1})
    assert report["wish"] == {"model": "toy2", "kv": "int8", "max_kl": 0.5, "threads": 1, "warm_time": 30.0}
    assert (report["gate"]["mean_kl"], report["gate"]["positions"]) == (0.0, 384)
    assert server.metric('pitstop_serving{kv="int8",version="9.9",weights="toy2",worker="1"}') == 1
    assert server.http.get("/healthz?fresh=1").status_code == 200


def test_what_is_wrong_is_refused_by_name(server: Server):
    for field, value in (
        ("modle", "x"),
        ("model", ""),
        ("kv_memory", 0),
        ("threads", -1),
        ("max_kl", -1),
        ("kv_guard", "no"),
        ("warm_time", 1e9),
    ):
        refused(server.post("/admin/upgrade", {field: value}), 400, field)
    assert "no program on the server's machine" in refused(server.post("/admin/upgrade", {"python": "/nonexistent"}), 400, "python")
    refused(server.post("/admin/upgrade", b'{"max_kl": NaN}'), 400, "max_kl")
    assert state(server) == {"state": "none"}


def test_one_at_a_time_and_a_cancel_before_the_switch(server: Server):
    assert server.post("/admin/upgrade", {"model": "toy --slow-start 60"}).status_code == 202
    refused(server.post("/admin/upgrade", {}), 409, code="upgrade_under_way")
    until(lambda: state(server)["state"] == "loading", 5)
    assert server.http.get("/readyz").status_code == 200
    report = server.http.delete("/admin/upgrade").json()
    assert (report["state"], report["reason"]) == ("cancelled", "it was cancelled")
    assert server.alive()
    assert upgraded(server)["state"] == "done"


def test_no_cancel_after_the_switch(server: Server):
    with server.http.stream(
        "POST", "/v1/completions", json={"model": "toy", "prompt": "#slow 20#", "max_tokens": 100, "stream": True}
    ) as slow:
        lines = slow.iter_lines()
        next(lines)
        server.post("/admin/upgrade", {})
        until(lambda: state(server)["state"] == "retiring", 20)
        assert state(server)["requests_left"] == 1
        refused(server.http.delete("/admin/upgrade"), 409, code="upgrade_switched")
        assert [line for line in lines if line][-1] == "data: [DONE]"
    until(lambda: state(server)["state"] == "done", 5)


def test_another_models_template_and_words_switch_with_it_and_nobody_is_hurt(server: Server):
    messages = {"model": "toy", "messages": [{"role": "user", "content": "hi"}]}
    count = lambda: server.post("/tokenize", messages).json()["count"]  # noqa: E731
    before, clients, stop = count(), ThreadPoolExecutor(4), []

    def client() -> int:
        answers = 0
        while not stop:
            response = server.chat("#say fine#", max_tokens=20)
            assert response.status_code == 200, response.text
            assert response.json()["choices"][0]["message"]["content"] == "fine"
            answers += 1
            time.sleep(0.02)  # the new worker starts on the same core
        return answers

    running = [clients.submit(client) for _ in range(4)]
    for model, more in (("alien", len("Alien: ")), ("broken", len("Alien: ")), ("toy", 0)):
        assert upgraded(server, model=model)["state"] == ("rolled_back" if model == "broken" else "done")
        assert count() == before + more
    stop.append(True)
    assert all(task.result() > 0 for task in running)
    assert_books_balance(server)


def test_without_admin_there_is_no_such_route():
    with fake_server() as server:
        refused(server.post("/admin/upgrade", {}), 404)


def test_it_needs_the_admin_key():
    with fake_server("--admin", "--key", "user", "--admin-key", "boss", key="user") as server:
        for method in ("POST", "GET", "DELETE"):
            refused(server.http.request(method, "/admin/upgrade", json={} if method == "POST" else None), 401)


def cli(server: Server, *options: str, key: str = "") -> tuple[int, str]:
    result = CliRunner(env={"PITSTOP_ADMIN_KEY": key}).invoke(app, ["upgrade", "--url", server.url, *options])
    return result.exit_code, result.output + (str(result.exception) if isinstance(result.exception, PitstopError) else "")


def test_the_command_shows_phase_by_phase_and_the_verdict(server: Server):
    status, output = cli(server, "--kv", "int8", "--threads", "1")
    assert status == 0, output
    assert [line.split()[0] for line in output.splitlines()] == [
        "checking",
        "loading",
        "gating",
        "warming",
        "switching",
        "retiring",
        "Done:",
    ]
    assert "mean KL divergence 0 over 384 positions" in output
    status, output = cli(server, "--kv", "int8")
    assert "3 canary answers equal" in output


@pytest.mark.parametrize("lent", [0, 7])
def test_the_command_says_what_memory_there_is(lent: int):
    memory = {"weights": 0, "kv": 64 << 20, "runtime": 1, "growth": 2, "free": 1 << 30, "lent": lent << 20}
    line = _line({"state": "checking", "seconds": 1.5}, {"gate": None, "memory": memory, "warmed": {}})
    more = ", 7 MiB lent by the old worker" if lent else ""
    assert line == f"checking      1.5 s  0 MiB of weights, 64 MiB of KV, 1024 MiB free{more}"


def test_the_command_ends_with_the_reason_of_a_rollback(server: Server):
    status, output = cli(server, "--model", "toy --fail 'no such tensor'")
    assert status == 1
    assert output.splitlines()[-1] == "Rolled back, the old worker serves on: loading: no such tensor"
    status, output = cli(server, "--model", "toy --slow-start 1", "--no-wait")
    assert (status, output) == (0, f"The upgrade has begun; {server.url}/admin/upgrade tells how it goes.\n")
    status, output = cli(server)
    assert status == 1
    assert "an upgrade is under way" in output


def test_the_command_says_what_to_do_where_there_is_no_such_server():
    with fake_server() as server:
        status, output = cli(server)
        assert (status, "pitstop serve --admin" in output) == (1, True)
    status, output = cli(server)
    assert (status, "does not answer" in output) == (1, True)
    with fake_server("--admin", "--admin-key", "boss") as server:
        assert "PITSTOP_ADMIN_KEY" in cli(server)[1]
        assert cli(server, key="boss")[0] == 0


def test_reports_are_json(server: Server):
    assert json.loads(cli(server, "--json")[1])["state"] == "done"


def test_what_was_prepared_for_the_model_before_is_prepared_again():
    """A switch while a request is tokenised: the old words, and errors that come of the mixture, are forgotten."""

    async def check() -> None:
        service = Service(ServerConfig("toy"))
        async with running_pool() as pool:
            old, new = pool.served, []

            def work(served: Served) -> Served:
                if served.texts is old.texts:
                    new.append(asyncio.run_coroutine_threadsafe(_switch(pool), loop).result(20))
                    if failing:
                        raise InvalidRequest("there is no such token")
                return served

            loop = asyncio.get_running_loop()
            for failing in (False, True):  # noqa: B007  read by work
                old = pool.served
                assert (await for_served(service, pool, work)).texts is pool.texts is not old.texts
            with pytest.raises(InvalidRequest):
                await for_served(service, pool, _refuse)

    asyncio.run(asyncio.wait_for(check(), 30))


async def _switch(pool: Pool) -> None:
    (old,) = pool.members
    model = "toy" if pool.texts.digest == "alien" else "alien"
    new = pool.add_member(old.config, texts=toy_model(model).texts)
    await new.ready()
    pool.promote(new, replacing=old)
    pool.retire(old)
    await old.gone.wait()


def _refuse(served: Served) -> None:
    raise InvalidRequest("no")
