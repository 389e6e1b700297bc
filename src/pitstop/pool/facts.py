"""What several workers are together, for the operator and for whoever sizes a request."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import msgspec
import psutil

from pitstop.engine.protocol import Ready
from pitstop.pool.member import Member


def together(members: Sequence[Member]) -> Ready:
    """One worker's facts as they are; of several the shortest context and the sum of the capacities; numerics "" if they differ."""
    facts = [member.facts for member in members]
    first = facts[0]
    if len(facts) == 1:
        return first
    capacity = replace(first.capacity, tokens=sum(each.capacity.tokens for each in facts))
    numerics = first.numerics if all(each.numerics == first.numerics for each in facts) else ""
    return msgspec.structs.replace(first, context=min(each.context for each in facts), capacity=capacity, numerics=numerics)


def memory_note(members: Sequence[Member]) -> str:
    """What each worker holds for itself, and what they share: the model's file, as far as it is read where it lies, and libraries."""
    memory = [psutil.Process(member.pid).memory_full_info() for member in members]
    count = len(members)
    own = sum(each.uss for each in memory) / count
    shared = sum(each.rss for each in memory) / count - own
    return f"{count} workers; memory of each: {own / 2**20:.0f} MiB of its own, {shared / 2**20:.0f} MiB shared"
