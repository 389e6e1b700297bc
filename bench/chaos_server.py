"""The server of a chaos scenario: `pitstop serve` as a user starts it, in a process group of its own, and what is read from outside."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

import httpx
from streams import free_port

from pitstop.stats.percentiles import percentile
from pitstop.verify.outcome import Check
from pitstop.verify.soak.exposition import parse, total

SABOTEUR = Path(__file__).parent / "saboteur"
START_TIMEOUT = 120.0


@dataclass
class Kit:
    """What a scenario gets: the file of the model to serve, a folder for what servers leave behind, how thorough to be."""

    model: str
    home: str
    quick: bool
    checks: list[Check] = field(default_factory=list)
    figures: dict = field(default_factory=dict)

    def size(self, quick: int, full: int) -> int:
        return quick if self.quick else full

    def promise(self, name: str, passed: bool, reason: str) -> None:
        """A promise, and what was measured."""
        self.checks.append(Check(name=name, passed=bool(passed), reason=reason))


class Server:
    """A running one. Everything is asked from outside."""

    def __init__(self, port: int, process: asyncio.subprocess.Process, log: Path) -> None:
        self.port = port
        self.process = process
        self.log = log
        self.model = "chaos"
        self.url = f"http://127.0.0.1:{port}"
        self.http = httpx.AsyncClient(base_url=self.url, timeout=30, trust_env=False)

    def completion(self, prompt: object, tokens: int, **fields: object) -> tuple[str, dict]:
        """A request for a greedy stream past any end token."""
        body = {"model": self.model, "prompt": prompt, "max_tokens": tokens, "temperature": 0, "ignore_eos": True, "stream": True}
        return "/v1/completions", body | {"stream_options": {"include_usage": True}} | fields

    async def status(self, path: str) -> int:
        """A probe's status; 0 when nobody answers."""
        try:
            return (await self.http.get(path)).status_code
        except httpx.TransportError:
            return 0

    async def metrics(self, *names: str) -> list[float]:
        """Of one scrape, each summed over the labels that are left open."""
        samples = parse((await self.http.get("/metrics")).text)
        return [total(samples, name) or 0.0 for name in names]

    async def metric(self, name: str) -> float:
        return (await self.metrics(name))[0]

    def workers(self) -> list[int]:
        """Process ids."""
        with open(f"/proc/{self.process.pid}/task/{self.process.pid}/children") as file:
            return [int(child) for child in file.read().split()]


@asynccontextmanager
async def serving(kit: Kit, *options: str, saboteur: bool = False) -> AsyncIterator[Server]:
    """A server that is ready. saboteur: its workers can be poisoned. Exits, with its log, when it does not come up."""
    port = free_port()
    words = ["-m", "pitstop.cli", "serve", kit.model, "--port", str(port), "--model-name", "chaos", *options]
    env = os.environ | {"PITSTOP_HOME": kit.home}  # no records of crashes among real ones
    if saboteur:
        env["PYTHONPATH"] = os.pathsep.join(filter(None, [str(SABOTEUR), env.get("PYTHONPATH", "")]))
    with tempfile.NamedTemporaryFile("w", suffix=".log", delete=False) as log:
        process = await asyncio.create_subprocess_exec(
            sys.executable, *words, env=env, stdout=log, stderr=log, stdin=asyncio.subprocess.DEVNULL, start_new_session=True
        )
    server = Server(port, process, Path(log.name))
    try:
        await until(lambda: _came_up(server), START_TIMEOUT)
        if process.returncode is not None:
            words = "\n".join(line for line in server.log.read_text().splitlines() if "/readyz" not in line)
            sys.exit(f"the server ended with status {process.returncode}:\n{words}")
        yield server
    finally:
        await server.http.aclose()
        if process.returncode is None:
            process.terminate()
            try:
                await asyncio.wait_for(process.wait(), 45)
            except TimeoutError:
                os.killpg(process.pid, signal.SIGKILL)
                await process.wait()
        server.log.unlink(missing_ok=True)


async def _came_up(server: Server) -> bool:
    return server.process.returncode is not None or await server.status("/readyz") == 200


class Late(Exception):
    """What was waited for did not happen."""


async def until(condition: Callable, seconds: float, pause: float = 0.02) -> float:
    """Poll an async condition until it holds: after how many seconds. Raises Late."""
    start = time.monotonic()
    while not await condition():
        if time.monotonic() - start > seconds:
            raise Late(f"did not happen within {seconds:g} s")
        await asyncio.sleep(pause)
    return time.monotonic() - start


def spread(seconds: Sequence[float]) -> str:
    """For a reader: median and largest of some times."""
    if not seconds:
        return "nothing measured"
    return f"median {show(percentile(seconds, 50))}, longest {show(max(seconds))}"


def show(seconds: float) -> str:
    return f"{1000 * seconds:.0f} ms" if seconds < 1 else f"{seconds:.1f} s"


def rounded(seconds: Sequence[float]) -> list[float]:
    return [round(value, 3) for value in seconds]
