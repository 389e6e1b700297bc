"""A fixed pool of interchangeable slots (pages, tails) with reference counts."""

from __future__ import annotations


class Slots:
    """`total` slots: free + cached + in use = total.

    `take`, `share` and `drop` are for holders; `list` and `unlist` are the prefix index's reference, at most one per slot. A slot that
    only the index refers to is cached; the last reference to go frees the slot.
    """

    def __init__(self, total: int) -> None:
        self.total = total
        self.cached = 0
        self.touched = 0
        """Slots ever taken. The one freed last is taken first, so no slot beyond these was written."""
        self._free = list(range(total - 1, -1, -1))
        self._references = [0] * total
        self._listed = [False] * total

    @property
    def free(self) -> int:
        return len(self._free)

    def references(self, slot: int) -> int:
        """Holders, and the index."""
        return self._references[slot]

    def is_cached(self, slot: int) -> bool:
        return self._listed[slot] and self._references[slot] == 1

    def take(self) -> int | None:
        """A free slot, or None."""
        if not self._free:
            return None
        slot = self._free.pop()
        self.touched = max(self.touched, slot + 1)
        self._references[slot] = 1
        return slot

    def share(self, slot: int) -> None:
        assert self._references[slot] > 0, f"slot {slot} is free"
        self.cached -= self.is_cached(slot)
        self._references[slot] += 1

    def drop(self, slot: int) -> None:
        assert self._references[slot] > 0, f"slot {slot} is free already"
        self._references[slot] -= 1
        self.cached += self.is_cached(slot)
        if self._references[slot] == 0:
            self._free.append(slot)

    def list(self, slot: int) -> None:
        """The index refers to a slot that somebody holds."""
        assert not self._listed[slot], f"slot {slot} is listed already"
        self.share(slot)
        self._listed[slot] = True

    def unlist(self, slot: int) -> None:
        assert self._listed[slot], f"slot {slot} is not listed"
        self.cached -= self.is_cached(slot)
        self._listed[slot] = False
        self.drop(slot)
