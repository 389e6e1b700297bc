"""Which member runs a choice: the one with the least to do, or the one that has computed the prompt's beginning."""

from __future__ import annotations

from collections.abc import Sequence

from pitstop.pool.journal import Entry
from pitstop.pool.member import Member
from pitstop.pool.prefixes import Prefixes

AFFINITY = 2.0
"""Outstanding tokens that a member may have more than the least loaded one, for each prompt token that need not be computed there."""


class Router:
    """Load is outstanding tokens: of prompts not yet computed, and of answers at their longest."""

    def __init__(self) -> None:
        self.prefixes = Prefixes()
        self._used: list[int] = []  # positions, the one chosen last at the end

    def choose(self, members: Sequence[Member], entry: Entry) -> Member:
        """One of `members`, of which there is at least one."""
        if len(members) == 1:
            return members[0]
        loads = {member.position: member.load for member in members}
        least = min(loads.values())
        shared = self.prefixes.shared(entry.request.prompt, entry.request.adapter)

        def rank(member: Member) -> tuple[int, int, int]:
            position = member.position
            saved = shared.get(position, 0)
            if loads[position] > least + AFFINITY * saved:
                saved = -1
            turn = self._used.index(position) if position in self._used else -1
            return -saved, loads[position], turn

        return min(members, key=rank)

    def forget(self) -> None:
        """What is known of prefixes is of no use any more: the model has other tokens."""
        self.prefixes.clear()

    def chosen(self, member: Member, entry: Entry) -> None:
        """The member runs it."""
        self.prefixes.served(member.position, entry.request.prompt, entry.request.adapter)
        if member.position in self._used:
            self._used.remove(member.position)
        self._used.append(member.position)
