"""The plans that a worker ran last, in memory that outlives it: the front made it, and reads it when the worker has died. No torch.

A ring of slots. A plan is written before it runs, so that the last one is the one that did not end; the last two, where a plan is made
while the one before it runs.
"""

from __future__ import annotations

import mmap
import os
import struct
import tempfile
from collections.abc import Iterable

import msgspec

SLOTS = 32
_SLOT = 32 << 10
_HEAD = struct.Struct("<QI?")  # number of the plan, from 1; length of the body; whether it has ended


class RecordedSpan(msgspec.Struct, frozen=True, array_like=True):
    """`count` tokens of request `id` from position `start` on, when `known` of its tokens were known."""

    id: str
    start: int
    count: int
    known: int

    @property
    def guessed(self) -> int:
        """How many of them were guesses."""
        return max(self.start + self.count - self.known, 0)


class RecordedPlan(msgspec.Struct, frozen=True):
    number: int
    done: bool
    spans: list[RecordedSpan]


_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(list[RecordedSpan]).decode


def memory() -> int:
    """File descriptor of empty memory for one worker's plans; it is given back with os.close."""
    if hasattr(os, "memfd_create"):
        fd = os.memfd_create("pitstop-plans")
    else:
        with tempfile.TemporaryFile() as file:
            fd = os.dup(file.fileno())
    os.truncate(fd, SLOTS * _SLOT)
    return fd


class Recorder:
    """The worker's side."""

    def __init__(self, fd: int) -> None:
        self._memory = mmap.mmap(fd, SLOTS * _SLOT)
        self._number = 0

    def begin(self, spans: Iterable[RecordedSpan]) -> int:
        """These run now, or next. What does not fit into a slot, some 400 of them, is left out. Returns the plan's number."""
        body = _encode(kept := list(spans))
        while len(body) > _SLOT - _HEAD.size:
            kept = kept[: len(kept) // 2]
            body = _encode(kept)
        self._number += 1
        at = self._number % SLOTS * _SLOT
        self._memory[at + _HEAD.size : at + _HEAD.size + len(body)] = body
        _HEAD.pack_into(self._memory, at, self._number, len(body), False)
        return self._number

    def done(self, number: int) -> None:
        """That plan has run."""
        at = number % SLOTS * _SLOT
        self._memory[at + _HEAD.size - 1] = 1


def read(fd: int) -> list[RecordedPlan]:
    """The plans in the order in which they ran, at most SLOTS."""
    plans = []
    with mmap.mmap(fd, SLOTS * _SLOT, prot=mmap.PROT_READ) as memory:
        for at in range(0, SLOTS * _SLOT, _SLOT):
            number, length, done = _HEAD.unpack_from(memory, at)
            if number:
                try:
                    spans = _decode(memory[at + _HEAD.size : at + _HEAD.size + length])
                except msgspec.DecodeError:  # killed while it was written
                    continue
                plans.append(RecordedPlan(number, done, spans))
    return sorted(plans, key=lambda plan: plan.number)
