"""Whether the engine answers, and answers right: what /healthz reports.

Engines that are exact to the bit have one right answer. Each worker is asked the same question beside the queue, at intervals, and its
tokens are compared with those of the first time. An idle worker answers in full; one with load answers the beginning, and there a recent
step alone is proof of life: a worker is not called dead for being busy. The endpoint only reads what this has found out.

A worker that has been right and is wrong now is replaced: its memory is no longer what it was. One that has never been right is not:
another one would be of the same kind.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections import Counter
from dataclasses import dataclass
from typing import Any, Literal

from pitstop.config import HealthConfig
from pitstop.errors import DeadlineExceeded, PitstopError
from pitstop.pool import Member, Pool
from pitstop.pool.probe import embed_request
from pitstop.text.tokenizer import Tokenizer

log = logging.getLogger(__name__)

PROMPT, ANSWER, ANSWER_UNDER_LOAD = 64, 64, 8
"""Tokens of a probe."""

SHARE = 0.05
"""Of the time that probes may take at most: on a slow machine they come less often than asked for."""

_BEGINNING = 0.25
"""Of the work for an answer in full that the beginning takes. Its time tells nothing: with load it is spent on others' tokens, too."""

_TEXT = "The quick brown fox jumps over the lazy dog. 0 1 2 3 4 5 6 7 8 9. To be, or not to be, that is the question. "

_TICK = 0.25  # seconds after which a pause is thought over: with load it is shorter
_FIRST = 120.0  # seconds for the first answer
_SLOWER = 10.0  # than the last one an answer may be

Outcome = Literal["right", "wrong", "late", "failed"]


@dataclass(slots=True)
class Patient:
    """What is known of one worker. Times in monotonic seconds."""

    checked: float  # when it was last found well, or first seen
    misses: int = 0  # in a row
    complaint: str = ""  # of the last miss
    worker: int | None = None  # process id of the one that all this is about
    proven: bool = False  # it has been right


def _stepped_since(member: Member, start: float) -> bool:
    now = time.monotonic()
    age = member.last_step_age(now)
    return age is not None and now - age > start


def _trouble(member: Member) -> str:
    """How a worker's process ended, and how often in a row, while the next one is not there; else ""."""
    if member.up or not member.deaths:
        return ""
    return f"{member.exit_status}; deaths in a row: {member.deaths}; it is being started again"


def question(tokenizer: Tokenizer, context: int) -> list[int]:
    """PROMPT tokens of plain text; fewer in a context that is shorter than two such questions."""
    tokens = tokenizer.encode(_TEXT)
    length = min(PROMPT, max(1, context // 4))
    return (tokens * (length // len(tokens) + 1))[:length]


class Health:
    """The state behind /healthz, kept by a task of its own. Belongs to the event loop."""

    def __init__(self, config: HealthConfig) -> None:
        self.outcomes: Counter[Outcome] = Counter()
        self.last_seconds = 0.0
        """How long the last full answer took."""
        self._config = config
        self._pool: Pool | None = None
        self._questions: dict[str, list[int]] = {}
        self._answers: dict[str, list[int]] = {}  # by what determines a worker's arithmetic
        self._patients: dict[int, Patient] = {}  # by the member's number
        self._wake = asyncio.Event()
        self._round = asyncio.Condition()
        self._rounds = 0
        self._under_way = False

    async def run(self, pool: Pool) -> None:
        """Check for ever. The first round records the right answers."""
        self._pool = pool
        while True:
            self._wake.clear()
            self._under_way = True
            started = time.monotonic()
            members = [member for member in pool.members if member.up and member.routed]
            await asyncio.gather(*(self._check(member) for member in members))
            self._patients = {number: one for number, one in self._patients.items() if number in {m.number for m in pool.members}}
            async with self._round:
                self._under_way = False
                self._rounds += 1
                self._round.notify_all()
            while not self._wake.is_set() and (left := started + self._pause() - time.monotonic()) > 0:
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(min(left, _TICK)):
                        await self._wake.wait()

    def _pause(self) -> float:
        """Seconds between two rounds, as things are now."""
        members = [member for member in self._pool.members if member.up]
        if not members or any(one.misses for one in self._patients.values()):
            return self._config.retry
        now = time.monotonic()
        idle = any(member.last_step_age(now) is None for member in members)
        return max(self._config.interval, self.last_seconds * (1.0 if idle else _BEGINNING) / SHARE)

    async def fresh(self) -> None:
        """Wait for a round that has yet to begin, some `timeout` at most. Callers share it: it is one in `retry` seconds."""
        if self._pool is None:
            return
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(self._config.timeout + 2 * self._config.retry), self._round:
                target = self._rounds + 1 + self._under_way
                asyncio.get_running_loop().call_later(self._config.retry, self._wake.set)
                await self._round.wait_for(lambda: self._rounds >= target)

    def report(self, state: str) -> tuple[bool, dict[str, Any]]:
        """Whether all is well, and the details. state: the service's. Computes nothing and waits for nothing."""
        now = time.monotonic()
        reasons = [] if state in ("ready", "draining") else [f"the service is {state}"]
        workers = []
        for member in self._pool.members if self._pool is not None else []:
            patient = self._patients.get(member.number)
            complaint = _trouble(member) or self._complaint(member, patient, now)
            workers.append({"worker": member.number, "life": member.life, "complaint": complaint or None})
            if patient is not None:
                workers[-1] |= {"checked_s": round(now - patient.checked, 3), "misses": patient.misses}
            if complaint and member.routed and (member.life == "ready" or state == "restarting"):
                reasons.append(f"worker {member.number}: {complaint}")
        return not reasons, {"status": "failing" if reasons else "ok", "reasons": reasons, "workers": workers}

    def _complaint(self, member: Member, patient: Patient | None, now: float) -> str:
        """Why this worker is not well; "" when it is."""
        if patient is None:
            return ""  # not asked yet
        if patient.misses >= self._config.misses:
            return patient.complaint
        if now - patient.checked > 3 * (self._pause() + self._limit()):
            return f"not checked for {now - patient.checked:.1f} s"
        return ""

    async def _check(self, member: Member) -> None:
        busy = member.last_step_age(time.monotonic()) is not None
        asked = self._question(member)
        length = min(ANSWER_UNDER_LOAD if busy else ANSWER, len(asked))
        start, accepted = time.monotonic(), self._pool.journal.accepted
        patient = self._patients.get(member.number)
        if patient is None or patient.worker != member.pid:  # a new worker is not ill with what its predecessor had
            patient = self._patients[member.number] = Patient(start, worker=member.pid)
        try:
            if member.facts.generates:
                answer = await self._pool.probe(asked, length, self._limit(), member)
            else:
                asking = member.aside(embed_request(asked, self._limit()), self._limit())
                answer, length = list((await asking).vector), None  # all of its bytes
        except DeadlineExceeded as error:
            if _stepped_since(member, start):
                self.outcomes["late"] += 1
                self._well(patient)  # it computes; it has others to serve
            else:
                self._miss(patient, "late", str(error))
            return
        except PitstopError as error:
            if member.up:
                self._miss(patient, "failed", f"a probe failed: {error}")
            return  # a worker that died is the supervisor's affair, and the service's state says so
        if not busy:
            if self._pool.journal.accepted == accepted:  # else the time is others', too
                self.last_seconds = time.monotonic() - start
            self._answers.setdefault(member.numerics, answer)
        right = self._answers.get(member.numerics)
        if right is not None and answer != right[:length]:
            self._miss(patient, "wrong", "wrong answer: the probe's tokens are not those of the start")
            if patient.misses < self._config.misses:
                await self._check(member)  # what is exact errs by no accident: the second look is at once
            elif patient.proven:
                member.condemn()
        else:
            self.outcomes["right"] += 1
            patient.proven = True
            self._well(patient)

    def _question(self, member: Member) -> list[int]:
        """In the words of the member's model."""
        if member.numerics not in self._questions:
            self._questions[member.numerics] = question(member.texts.tokenizer, member.facts.context)
        return self._questions[member.numerics]

    def _limit(self) -> float:
        """Seconds for an answer: a model may be slow, and how slow the first time tells."""
        patience = _SLOWER * self.last_seconds if self.last_seconds else _FIRST
        return max(self._config.timeout, patience)

    def _well(self, patient: Patient) -> None:
        if patient.misses >= self._config.misses:
            log.warning("a worker is well again: %s", patient.complaint)
        patient.checked, patient.misses, patient.complaint = time.monotonic(), 0, ""

    def _miss(self, patient: Patient, outcome: Outcome, complaint: str) -> None:
        self.outcomes[outcome] += 1
        patient.misses += 1
        patient.complaint = complaint
        if patient.misses == self._config.misses:
            log.error("unhealthy: %s", complaint)
