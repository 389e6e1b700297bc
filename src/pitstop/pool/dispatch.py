"""Who runs what: choices go to members, pause when their worker dies, and go on elsewhere, within bounds."""

from __future__ import annotations

import time
from collections.abc import Sequence

from pitstop.errors import PitstopError, Quarantined, WorkerDied
from pitstop.pool.journal import Entry, Journal
from pitstop.pool.member import Member
from pitstop.pool.router import Router
from pitstop.pool.texts import Texts

MAX_ATTEMPTS = 3
"""Workers that may die while they run a request, whatever killed them."""

PROBATION = 8
"""Tokens that a suspect has to bring before the next one goes on."""

MAX_CRASHES = 2
"""Those of them that may die by their own fault: then the request is the suspect."""


class Dispatch:
    """The way from the journal to the members. `members` is the pool's own list."""

    def __init__(self, journal: Journal, members: Sequence[Member]) -> None:
        self.router = Router()
        self._journal = journal
        self._members = members
        self.texts: Texts | None = None
        """Those of the model that new requests are for."""
        self._paused: dict[str, Entry] = {}  # in flight, without a worker
        self._on_trial: Entry | None = None
        self._acquitted_at = 0  # tokens

    def open_members(self) -> list[Member]:
        """Those that new requests may go to."""
        return [member for member in self._members if member.routed and member.up and member.texts is self.texts]

    def run(self, entry: Entry) -> None:
        """Hand a choice to a member, or let it wait for one.

        Those that were running when a worker crashed are suspects and go on one at a time, until each has come past where it was. So
        the next crash tells who is the cause, and neighbours are not punished with it.
        """
        members = self._candidates(entry)
        if not members or (entry.crashes and self._on_trial not in (None, entry)):
            self._paused[entry.request.id] = entry
            return
        if entry.crashes:
            self._on_trial, self._acquitted_at = entry, len(entry.emitted) + PROBATION
        member = self.router.choose(members, entry)
        self._paused.pop(entry.request.id, None)
        if entry.paused_at is not None:
            self._journal.resumed += 1
        self.router.chosen(member, entry)
        member.submit(entry)

    def forget(self, entry: Entry) -> None:
        """It has ended."""
        self._paused.pop(entry.request.id, None)
        self._end_trial(entry)

    def progressed(self, entry: Entry) -> None:
        """Tokens have come. A suspect that is past the point where a worker crashed is none any more."""
        if entry is self._on_trial and len(entry.emitted) >= self._acquitted_at:
            entry.crashes = 0
            self._end_trial(entry)

    def _end_trial(self, entry: Entry) -> None:
        if entry is self._on_trial:
            self._on_trial = None
            for suspect in self.waiting():
                if suspect.crashes and self._on_trial is None:
                    self.run(suspect)

    def waiting(self) -> list[Entry]:
        """Those without a worker, in the order of acceptance."""
        return [entry for entry in self._journal.entries.values() if entry.request.id in self._paused] if self._paused else []

    def wait_for(self, member: Member) -> bool:
        """Whether a choice has nobody else to go to: for its words, its length, or the arithmetic that has begun its answer."""
        return any(member in self._able(entry) for entry in self._paused.values())

    def bury(self, member: Member, entries: Sequence[Entry]) -> None:
        """The member's worker has died and left these: book it."""
        now = time.monotonic()
        self.router.prefixes.forget(member.position)
        struck = {span.id for plan in member.last_plans for span in plan.spans if not plan.done}
        for entry in entries:
            if entry is self._on_trial:
                self._on_trial = None
            if entry.request.id in struck or (not struck and entry.stage == "running"):
                entry.deaths += 1
                entry.crashes += member.crashed
            if member.condemned:
                entry.begin_again()
            self._journal.move(entry, "queued")
            if entry.paused_at is None:
                entry.paused_at = now

    @staticmethod
    def verdict(entry: Entry) -> PitstopError | None:
        """Why a choice whose worker died is not tried again, if so. Those that only waited there are innocent."""
        if entry.crashes >= MAX_CRASHES:
            return Quarantined(f"Workers crashed {entry.crashes} times while they ran {entry.request.id}; it is not tried again.")
        if entry.deaths >= MAX_ATTEMPTS:
            return WorkerDied(f"{entry.deaths} workers that ran {entry.request.id} were killed, one after the other; try again.")
        return None

    def _candidates(self, entry: Entry) -> list[Member]:
        """Who may run a choice now; those that stay before those that leave."""
        members = [member for member in self._able(entry) if member.up]
        return [member for member in members if member.routed] or members

    def _able(self, entry: Entry) -> list[Member]:
        """Who may run a choice as soon as a worker is there.

        Its tokens mean something to one model only. An answer that has begun goes on by the same arithmetic, as long as anybody has it;
        the others go to those that take new requests, if they can.
        """
        present = [member for member in self._members if (member.routed or member.life == "retiring") and member.suits(entry)]
        equal = [member for member in present if member.numerics == entry.numerics] if entry.begun else []
        return equal or [member for member in present if member.routed] or present
