"""More clients than there is room for, clients that leave, and a server that is told to leave."""

from __future__ import annotations

import asyncio
import contextlib
import os
import random
import signal
import time
from collections import Counter

import texts
from chaos_client import Prober, ask, together
from chaos_server import Kit, Server, serving, show, spread, until
from chaos_workers import GENERATED

from pitstop.stats.percentiles import percentile
from pitstop.stats.slopes import slope
from pitstop.verify.slo import SoakLimits

PROBE_P95 = 0.25
"""Seconds within which 95 % of probes are answered, whatever the load."""
IDLE_WITHIN = 2.0
"""Seconds after which nothing of an aborted request is left."""
KIB = 1024


async def overload(kit: Kit) -> None:
    """Five hundred requests at once over a queue of 32."""
    crowd, bound = 500, 32
    names = ("pitstop_requests_accepted_total", "pitstop_requests_rejected_total", "pitstop_requests_finished_total", "pitstop_requests")
    async with serving(kit, "--context", "1024", "--max-waiting", str(bound), "--kv-memory", "512MiB") as server:
        path, body = server.completion("Count: 1 2 3 4 5 6", 16)
        request = path, body | {"stream": False, "stream_options": None}
        (alone,) = await together(server.port, [request])
        with Prober(server.port, ("/livez", "/readyz", "/healthz"), 0.05) as prober:
            answers = await together(server.port, [request] * crowd)
        accepted, rejected, finished, in_flight = await server.metrics(*names)
    taken = [answer for answer in answers if answer.whole]
    refused = [answer for answer in answers if answer.status == 429]
    waits = [int(answer.headers["retry-after"]) for answer in refused]
    others = Counter(answer.error for answer in answers if answer not in taken and answer not in refused)
    probes = [value for seen in prober.seen.values() for value in seen.latencies]
    told, served = ([answer.seconds for answer in group] for group in (refused, taken))
    kit.promise("200 or 429, nothing else", not others, f"{len(taken)} answered, {len(refused)} refused {dict(others) or ''}".strip())
    kit.promise("at least the bound is taken", bound <= len(taken) < crowd, f"{len(taken)} of {crowd} over a bound of {bound}")
    kit.promise("refused at once", percentile(told, 95) < 2, f"{spread(told)}; the accepted: {spread(served)}")
    some = waits and 1 <= min(waits) <= max(waits) <= 60
    kit.promise("told when to come back", some, f"Retry-After {min(waits)} to {max(waits)} s, {len(set(waits))} different")
    kit.promise("the accepted are right", all(answer.content() == alone.content() for answer in taken), f"{len(taken)} equal to one alone")
    kit.promise(f"95 % of probes within {show(PROBE_P95)}", percentile(probes, 95) < PROBE_P95, f"{len(probes)} probes: {spread(probes)}")
    balanced = accepted == finished == len(taken) + 1 and rejected == len(refused) and in_flight == 0
    sums = f"accepted {accepted:.0f} = finished {finished:.0f}; rejected {rejected:.0f}; in flight {in_flight:.0f}"
    kit.promise("counters add up", balanced, sums)
    kit.figures |= {"answered": len(taken), "refused": len(refused), "refused_p95_s": round(percentile(told, 95), 3)}
    kit.figures |= {"probe_p95_s": round(percentile(probes, 95), 4)}


async def aborts(kit: Kit) -> None:
    """Streams that are cut off: before the first piece, after it, later, while queued.

    Counted from when a server has what it keeps for good, and no more than that: memory for each number of rows in its worker, and in
    its front the tokens of ten thousand words, which the tokenizer remembers.
    """
    total, batches, warm = kit.size(360, 2000), 20, kit.size(120, 2000)
    draw, text = random.Random(0), texts.read()
    limit = SoakLimits().memory_kb_per_request or 0
    counts, memory, waits, processes = [], [], [], ("front", "worker")
    sizes = [*(f'pitstop_process_anonymous_bytes{{process="{name}"}}' for name in processes), "pitstop_kv_touched_bytes"]
    async with serving(kit, "--context", "2048", "--kv-memory", "256MiB", "--max-waiting", "100") as server:

        async def leave() -> None:
            begin = draw.randrange(len(text))
            path, body = server.completion(text[begin : begin + draw.choice((50, 400, 3000))], 200)
            when = draw.choice((0.05, 0.3, None, None, None))  # seconds, or after some pieces
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(ask(server.port, path, body, pieces=draw.choice((1, 1, 5))), when)

        async def client(count: int) -> None:
            for _ in range(count):
                await leave()

        async def batch(size: int) -> None:
            await asyncio.gather(*(client(size // 12 + (number < size % 12)) for number in range(12)))
            waits.append(await until(lambda: _idle(server), 10))

        for begin in range(0, len(text), 50_000):
            (await server.http.post("/tokenize", json={"prompt": text[begin : begin + 50_000]})).raise_for_status()
        await batch(warm)
        base = await server.metrics('pitstop_kv_pages{use="in_use"}', 'pitstop_kv_tails{use="in_use"}')
        for number in range(batches):
            await batch(total // batches)
            counts.append((number + 1) * (total // batches))
            front, worker, touched = await server.metrics(*sizes)
            memory.append((front, worker - touched))
        after = await server.metrics('pitstop_kv_pages{use="in_use"}', 'pitstop_kv_tails{use="in_use"}')
        restarts, cancelled = await server.metrics("pitstop_worker_restarts_total", 'pitstop_requests_finished_total{reason="cancelled"}')
    found = slope(counts, [sum(held) for held in memory])
    low, high, value = (number / KIB for number in (found.low, found.high, found.value))
    between = f"{value:+.2f} KiB an abort, between {low:+.2f} and {high:+.2f} with 95 % confidence; {limit:g} allowed"
    kit.promise("no growth of anonymous memory", low <= 0 or high <= limit, between)
    kit.promise("pages and tails as before", base == after == [0.0, 0.0], f"in use {base} before, {after} after {counts[-1]} aborts")
    kit.promise(f"idle within {IDLE_WITHIN:g} s", max(waits) < IDLE_WITHIN, f"after the last client of a batch left: {spread(waits)}")
    kit.promise(
        "the worker lives",
        restarts == 0,
        f"{restarts:.0f} restarts; {cancelled:.0f} requests were cancelled in the engine's queue or midway",
    )
    kit.figures |= {
        "aborts": counts[-1],
        "kib_per_abort": [round(part, 3) for part in (low, value, high)],
        "kib_after_batches": {name: [round(held[i] / KIB) for held in memory] for i, name in enumerate(processes)},
        "idle_longest_s": round(max(waits), 3),
    }


async def _idle(server: Server) -> bool:
    return not any(await server.metrics("pitstop_requests", 'pitstop_kv_pages{use="in_use"}', 'pitstop_kv_tails{use="in_use"}'))


async def drain(kit: Kit) -> None:
    """SIGTERM under ten streams, then a second time."""
    unready: list[float] = []
    ends: list[float] = []
    whole = wrong = 0
    refusals: Counter[int] = Counter()
    statuses: Counter[int | None] = Counter()
    left: list[int] = []
    quick: list[float] = []
    rounds = kit.size(1, 5)
    for _ in range(rounds):
        async with serving(kit, "--context", "1024", "--kv-memory", "256MiB") as server:
            requests = [server.completion(f"{number} little engines went to ", 150 + 10 * number) for number in range(10)]
            right = [answer.content() for answer in await together(server.port, requests)]
            streams = await _streaming(server, requests)
            workers = server.workers()
            kept = await server.status("/readyz")  # a connection that is open already, as a balancer's is
            assert kept == 200
            start = time.monotonic()
            server.process.send_signal(signal.SIGTERM)
            unready.append(await until(lambda: _unready(server), 5, 0.002))
            refusals.update(answer.status for answer in await together(server.port, requests[:3]))
            answers = await streams
            statuses.update([await asyncio.wait_for(server.process.wait(), 40)])
            ends.append(time.monotonic() - start)
            whole += sum(answer.whole for answer in answers)
            wrong += sum(answer.content() != one for answer, one in zip(answers, right, strict=True))
            left += [pid for pid in workers if os.path.exists(f"/proc/{pid}")]
        async with serving(kit, "--context", "1024", "--kv-memory", "256MiB") as server:
            streams = await _streaming(server, [server.completion("No end of ", 900)] * 4)
            server.process.send_signal(signal.SIGTERM)
            await until(lambda: _unready(server), 5, 0.002)
            start = time.monotonic()
            server.process.send_signal(signal.SIGTERM)
            await asyncio.wait_for(server.process.wait(), 40)
            quick.append(time.monotonic() - start)
            await streams
    kit.promise("unready at once", max(unready) < 0.5, spread(unready))
    kit.promise("accepted streams end, equal", whole == 10 * rounds and not wrong, f"{whole} of {10 * rounds} whole, {wrong} differ")
    kit.promise("new requests get 503", set(refusals) == {503}, f"{dict(refusals)}")
    kit.promise(
        "exit 0 before the deadline, no child left",
        set(statuses) == {0} and max(ends) < 30 and not left,
        f"{spread(ends)}; children {left}",
    )
    kit.promise("a second signal is quick", max(quick) < 5, spread(quick))
    kit.figures |= {"unready_s": round(max(unready), 4), "drained_s": round(max(ends), 2), "second_signal_s": round(max(quick), 2)}


async def _streaming(server: Server, requests: list[tuple[str, dict]]) -> asyncio.Task:
    """Streams that have all begun."""
    start = await server.metric(GENERATED)
    streams = asyncio.create_task(together(server.port, requests))

    async def begun() -> bool:
        running, generated = await server.metrics("pitstop_requests_running", GENERATED)
        return running == len(requests) and generated >= start + 3 * len(requests)

    await until(begun, 60, 0.01)
    return streams


async def _unready(server: Server) -> bool:
    return await server.status("/readyz") == 503
