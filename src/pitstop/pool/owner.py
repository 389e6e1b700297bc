"""What a member needs of its pool."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from pitstop.engine.protocol import Step
from pitstop.pool.adapters import Adapters
from pitstop.pool.journal import Entry
from pitstop.pool.stream import Delta

if TYPE_CHECKING:
    from pitstop.pool.member import Member


class Owner(Protocol):
    """What a member tells its pool, on the event loop."""

    adapters: Adapters

    def on_ready(self, member: Member) -> None:
        """A worker has become ready, the first one or a replacement, or has loaded an adapter."""

    def on_step(self, member: Member, step: Step, deltas: list[Delta]) -> None: ...

    def on_death(self, member: Member, entries: list[Entry]) -> None:
        """The worker has ended and left these, in the order in which they were submitted. `member.crashed` says whose fault it was."""

    def on_gone(self, member: Member) -> None:
        """The member is dead."""

    def needs(self, member: Member) -> bool:
        """Whether a dead worker is to be replaced."""
        ...
