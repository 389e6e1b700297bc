"""A fixed pool of interchangeable slots (pages, tails) with reference counts."""

from __future__ import annotations


class Slots:
    """`total` slots: free + cached + in use = total.

    `take`, `share` and `drop` are for holders; `list` and `unlist` are the prefix index's reference, at most one per slot. A slot that
    only the index refers to is cached; the last reference to go frees the slot. Free slots may be withdrawn: then they are in no count.
    """

    def __init__(self, total: int) -> None:
        self.total = total
        self.cached = 0
        self.touched = 0
        """Slots ever taken, and not withdrawn since. The one freed last is taken first, so that they are few."""
        self._free = list(range(total - 1, -1, -1))
        self._withdrawn: list[int] = []
        self._taken = [False] * total
        self._references = [0] * total
        self._listed = [False] * total

    @property
    def free(self) -> int:
        return len(self._free)

    @property
    def withdrawn(self) -> int:
        return len(self._withdrawn)

    @property
    def all(self) -> range:
        """Every slot, withdrawn or not."""
        return range(len(self._references))

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
        self.touched += not self._taken[slot]
        self._taken[slot] = True
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

    def withdraw(self, count: int) -> list[int]:
        """Up to `count` free slots leave the pool, first those that were never taken. What the others held is lost."""
        slots, self._free = self._free[:count], self._free[count:]
        self.total -= len(slots)
        self.touched -= sum(self._taken[slot] for slot in slots)
        for slot in slots:
            self._taken[slot] = False
        self._withdrawn += slots
        return slots

    def restore(self) -> None:
        """All that were withdrawn are free again, to be taken last."""
        self._free = self._withdrawn + self._free
        self.total += len(self._withdrawn)
        self._withdrawn = []
