"""Workers that die, stand still, compute wrongly or are only busy."""

from __future__ import annotations

import asyncio
import itertools
import os
import signal
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

import texts
from chaos_client import Answer, Prober, ask, together
from chaos_server import Kit, Server, rounded, serving, spread, until

DETECTION = 5.0
"""Seconds in which a worker that does not work must be noticed."""

STORY = "Once upon a time there was a little engine that "
SAMPLED = {"temperature": 0.9, "seed": 7}
POISON_INTERVAL = 2.0
"""Seconds between questions to the workers, where they may be poisoned."""

GENERATED, RESTARTS = "pitstop_generated_tokens_total", "pitstop_worker_restarts_total"


def wave(server: Server) -> list[tuple[str, dict]]:
    """Streams of all kinds: greedy and sampled, with log-probabilities, several choices, a long prompt, a chat."""
    chat = {
        "model": server.model,
        "messages": [{"role": "user", "content": "Tell me of the sea."}],
        "max_tokens": 100,
        "min_tokens": 80,
        "repetition_penalty": 1.1,
        "logprobs": True,
        "top_logprobs": 2,
        "stream": True,
        "stream_options": {"include_usage": True},
    }
    return [
        server.completion(STORY, 150),
        server.completion("1 2 3 4 5 6", 150, logprobs=2),
        server.completion(STORY, 120, logprobs=3, **SAMPLED),
        server.completion(STORY * 90, 60, n=2, logprobs=0, top_p=0.9, **SAMPLED),
        server.completion(texts.read()[:2000], 100, frequency_penalty=0.7, **SAMPLED),
        server.completion(texts.read()[5000:7000], 120),
        ("/v1/chat/completions", chat | {"temperature": 0.7, "seed": 3}),
        ("/v1/chat/completions", chat | {"temperature": 0}),
    ]


async def undisturbed(server: Server) -> list[list]:
    """What the wave's answers must be."""
    answers = await together(server.port, wave(server))
    assert all(answer.whole for answer in answers), [answer.error for answer in answers]
    right = [answer.content() for answer in answers]
    assert all(choice["text"] and choice["finish"] for content in right for choice in content[:-2])
    assert all(one not in right[:place] for place, one in enumerate(right))  # else "equal" would say little
    return right


async def under_load(server: Server, tokens: int, harm: Callable[[], Awaitable[None]]) -> list[Answer]:
    """The wave's answers. Harm is done after so many tokens of them."""
    start = await server.metric(GENERATED)
    answers = asyncio.create_task(together(server.port, wave(server)))
    await _generated(server, start + tokens)
    await harm()
    return await answers


async def _generated(server: Server, tokens: float) -> None:
    async def reached() -> bool:
        return await server.metric(GENERATED) >= tokens

    await until(reached, 60, 0.01)


async def kill(kit: Kit) -> None:
    """SIGKILL of the worker under load."""
    await _disturb(kit, signal.SIGKILL)


async def stop(kit: Kit) -> None:
    """SIGSTOP of the worker under load."""
    await _disturb(kit, signal.SIGSTOP)


async def _disturb(kit: Kit, number: signal.Signals) -> None:
    """Again and again: after few tokens, when prompts are computed, and in the middle of answers."""
    rounds = kit.size(3, 10)
    noticed: list[float] = []
    pauses: list[float] = []
    differ: list[str] = []
    ended = 0
    async with serving(kit, "--context", "2048", "--kv-memory", "512MiB") as server:
        right = await undisturbed(server)

        async def harm() -> None:
            nonlocal moment
            (worker,) = server.workers()
            moment = time.monotonic()
            os.kill(worker, number)

            async def seen() -> bool:
                return await server.status("/readyz") == 503

            noticed.append(await until(seen, 30, 0.005))

        moment = 0.0
        for count in range(rounds):
            answers = await under_load(server, 1 + 120 * (count % 5), harm)
            pauses += [gap for answer in answers if (gap := answer.longest_gap(moment)) > noticed[-1]]
            ended += len(answers)
            differ += [answer.error or "another text" for answer, one in zip(answers, right, strict=True) if answer.content() != one]
        restarts, errors = await server.metrics(RESTARTS, 'pitstop_requests_finished_total{reason="error"}')
    kit.promise(f"noticed within {DETECTION:g} s", max(noticed) < DETECTION, f"{rounds} times: {spread(noticed)}")
    kit.promise("every stream ends, equal to the bit", not differ, f"{ended - len(differ)} of {ended} {'; '.join(differ[:2])}".strip())
    kit.promise("replaced each time, no error", restarts == rounds and not errors, f"{restarts:.0f} new workers, {errors:.0f} errors")
    kit.promise("streams go on", pauses, f"pause, growing with deaths in a row: {spread(pauses)}")
    kit.figures |= {"rounds": rounds, "noticed_s": rounded(noticed), "longest_pause_s": round(max(pauses, default=0), 3), "streams": ended}


@asynccontextmanager
async def _poisonable(kit: Kit) -> AsyncIterator[tuple[Server, list[list]]]:
    """A server whose workers can be poisoned and have been right once, and what the wave's answers must be."""
    options = ("--context", "2048", "--kv-memory", "512MiB", "--health-interval", f"{POISON_INTERVAL:g}")
    async with serving(kit, *options, saboteur=True) as server:
        right = await undisturbed(server)
        await until(lambda: _probed(server), 30)
        yield server, right


async def poison(kit: Kit) -> None:
    """Flipped bits in a worker's weights, under load."""
    rounds = kit.size(3, 10)
    noticed: list[float] = []
    tally = dict.fromkeys(("equal", "ended with an error", "wrong, and ended before it was noticed", "wrong, and went on"), 0)
    later_differ = 0
    async with _poisonable(kit) as (server, right):
        for count in range(rounds):
            noticed_at, answers = await _poisoned(server, signal.SIGUSR1, 1 + 120 * (count % 5), noticed)
            for answer, one in zip(answers, itertools.cycle(right)):
                if answer.content() == one:
                    tally["equal"] += 1
                elif answer.error:
                    tally["ended with an error"] += 1
                else:
                    tally["wrong, and ended before it was noticed" if answer.ended < noticed_at else "wrong, and went on"] += 1
            await until(lambda: _well(server), 60)
            later = await together(server.port, wave(server))
            later_differ += sum(answer.content() != one for answer, one in zip(later, right, strict=True))
        restarts = await server.metric(RESTARTS)
    kit.promise(f"noticed within {DETECTION:g} s", max(noticed) < DETECTION, f"asked every {POISON_INTERVAL:g} s: {spread(noticed)}")
    kit.promise("the worker is replaced", restarts == rounds, f"{restarts:.0f} new workers for {rounds} poisoned ones")
    tallied = "; ".join(f"{count} {what}" for what, count in tally.items() if count)
    kit.promise("no wrong answer goes on", not tally["wrong, and went on"], tallied)
    kit.promise("afterwards all is right", not later_differ, f"{later_differ} of {rounds * len(right)} differ")
    kit.figures |= {"rounds": rounds, "noticed_s": rounded(noticed), "answers": tally}


async def canary(kit: Kit) -> None:
    """A worker whose answers to probes alone are wrong: what people asked it ends as if nothing had been."""
    rounds = kit.size(3, 10)
    noticed: list[float] = []
    differ: list[str] = []
    ended = 0
    async with _poisonable(kit) as (server, right):
        for count in range(rounds):
            _, answers = await _poisoned(server, signal.SIGUSR2, 1 + 120 * (count % 5), noticed)
            pairs = zip(answers, itertools.cycle(right))
            differ += [answer.error or "another text" for answer, one in pairs if answer.content() != one]
            ended += len(answers)
            await until(lambda: _well(server), 60)
        restarts, errors = await server.metrics(RESTARTS, 'pitstop_requests_finished_total{reason="error"}')
    kit.promise(f"noticed within {DETECTION:g} s", max(noticed) < DETECTION, f"asked every {POISON_INTERVAL:g} s: {spread(noticed)}")
    kit.promise("every stream ends, equal to the bit", not differ, f"{ended - len(differ)} of {ended} {'; '.join(differ[:2])}".strip())
    kit.promise("replaced each time, no error", restarts == rounds and not errors, f"{restarts:.0f} new workers, {errors:.0f} errors")
    kit.figures |= {"rounds": rounds, "noticed_s": rounded(noticed), "streams": ended}


async def _poisoned(server: Server, harm: signal.Signals, tokens: int, noticed: list[float]) -> tuple[float, list[Answer]]:
    """Poison the worker after so many tokens, under waves that go on until it is noticed: when that was, and all answers."""
    answers: list[Answer] = []
    found = asyncio.Event()

    async def more() -> None:
        while not found.is_set():
            answers.extend(await together(server.port, wave(server)))

    async def seen() -> bool:
        return await server.metric(RESTARTS) > before or await server.status("/healthz") == 503

    start, before = await server.metrics(GENERATED, RESTARTS)
    waves = asyncio.create_task(more())
    await _generated(server, start + tokens)
    (worker,) = server.workers()
    os.kill(worker, harm)
    noticed.append(await until(seen, 60))
    moment = time.monotonic()
    found.set()
    await waves
    return moment, answers


async def _probed(server: Server) -> bool:
    return await server.metric('pitstop_health_probes_total{outcome="right"}') > 0


async def _well(server: Server) -> bool:
    return await server.status("/readyz") == 200 and await server.status("/healthz") == 200


async def saturation(kit: Kit) -> None:
    """No false alarm at saturation, prompts of 7,000 tokens among the load."""
    seconds = kit.size(60, 600)
    text = texts.read()
    ends: list[Answer] = []
    long = 0
    async with serving(kit, "--kv-memory", "1GiB") as server:
        end = time.monotonic() + seconds

        async def client(number: int) -> None:
            nonlocal long
            turn = 0
            while time.monotonic() < end:
                turn += 1
                begin = (number * 7919 + turn * 104729) % 500_000
                if number < 2:  # 28,000 characters are some 7,000 tokens
                    request, long = server.completion(text[begin : begin + 28_000], 16), long + 1
                else:
                    request = server.completion(text[begin : begin + 400 * (1 + turn % 4)], 16 + 16 * (turn % 5))
                ends.append(await ask(server.port, *request))

        with Prober(server.port, ("/livez", "/readyz", "/healthz"), 0.2) as prober:
            await asyncio.gather(*(client(number) for number in range(24)))
        restarts, probes = await server.metrics(RESTARTS, "pitstop_health_probes_total")
    alarms = [f"{path} {what}" for path, seen in prober.seen.items() for _, what in seen.alarms]
    bad = [answer.error for answer in ends if not answer.whole]
    latencies = [value for seen in prober.seen.values() for value in seen.latencies]
    prompts = [answer.events[-1]["usage"]["prompt_tokens"] for answer in ends if answer.whole]
    kit.promise("no alarm", not alarms, f"{len(alarms)} in {seconds} s of {len(latencies)} probes {'; '.join(alarms[:2])}".strip())
    kit.promise("no worker is shot", restarts == 0, f"{restarts:.0f} restarts; {probes:.0f} questions to the worker")
    longest = max(prompts, default=0)
    kit.promise("every answer is whole", not bad, f"{len(ends)} answers, {long} to prompts of up to {longest} tokens {'; '.join(bad[:2])}")
    kit.promise("probes are answered within 1 s", max(latencies) < 1, spread(latencies))
    kit.figures |= {"seconds_of_load": seconds, "answers": len(ends), "alarms": len(alarms), "longest_prompt": longest}
    kit.figures |= {"probe_longest_s": round(max(latencies), 3)}
