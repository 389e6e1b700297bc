"""How many guessed tokens a step computes: as many as pay. Pure Python, no torch."""

from __future__ import annotations

from bisect import bisect_left

from pitstop.engine.pace import work

WORTH = 1.03
"""How much faster tokens must come with guesses than without: less is within what the estimates err."""

MEMORY = 128
"""Steps after which a measured time is forgotten: contexts have grown since, or neighbours have gone."""

RISE = 0.25
"""Share of a longer time that counts at once; a shorter one counts fully, because whatever disturbs a measurement makes it longer."""

GRAIN = 4
"""Beyond twice as many rows, steps with guesses have a multiple of it: each number is recorded as a graph, which takes time once."""

HOPELESS = 0.1
"""Guesses with less of a chance are not considered."""


class Speculation:
    """Shares out guessed tokens among the streams of a step of decodes.

    A step of n streams brings n tokens, and with guesses whose chances to be accepted are p1, p2, … it brings n + p1 + p2 + … of them. It
    takes T(rows) seconds, which the engine reports: on a CPU few rows cost little more than one, because all weights are read anyway, and
    many cost each its share. Of all the streams' guesses the likeliest come first, and as many of them are computed as make tokens come
    fastest: (n + p1 + … + pk) / T(n + k). None, unless that beats n / T(n) by WORTH.

    T is a table of what was measured in the last MEMORY steps, with straight lines between its entries and, beyond the largest, the
    estimate of engine.pace: it is low, so more is tried then, once, and known. When T(n) is not in it, a step without guesses measures it.
    """

    def __init__(self, most: int) -> None:
        self.most = most
        """Tokens guessed a step and stream."""
        self._times: dict[int, tuple[float, int]] = {}  # by rows: seconds, and in which step they were measured
        self._steps = 0

    def took(self, rows: int, seconds: float) -> None:
        """A step of decodes of so many rows, guesses included, took so long."""
        self._steps += 1
        before, _ = self._times.get(rows, (seconds, 0))
        self._times[rows] = min(seconds, before + RISE * (seconds - before)), self._steps

    def share(self, chances: list[list[float]]) -> list[int]:
        """How many of its guesses each stream computes. chances: for each stream, falling: Lookup.chances."""
        streams, counts = len(chances), [0] * len(chances)
        ranked = [(-chance, at, stream) for stream, each in enumerate(chances) for at, chance in enumerate(each) if chance > HOPELESS]
        if not ranked:
            return counts
        times = {rows: seconds for rows, (seconds, step) in self._times.items() if step > self._steps - MEMORY}
        plain = times.get(streams)
        if plain is None:
            return counts
        ranked.sort()
        table = sorted(times.items())
        best, taken, tokens = WORTH * streams / plain, 0, float(streams)
        for count, (chance, _, _) in enumerate(ranked, 1):
            tokens -= chance
            rows = streams + count
            if rows > 2 * GRAIN and rows % GRAIN:
                continue
            rate = tokens / max(plain, _estimate(table, rows))
            if rate > best:
                best, taken = rate, count
        for _, _, stream in ranked[:taken]:
            counts[stream] += 1
        return counts


def _estimate(table: list[tuple[int, float]], rows: int) -> float:
    """Seconds of a step of so many rows by the table [(rows, seconds)], sorted, which begins with fewer rows."""
    at = bisect_left(table, (rows,))
    fewer, seconds = table[at - 1]
    if at == len(table):
        return seconds * work(rows, 0, 0.0) / work(fewer, 0, 0.0)
    more, longer = table[at]
    return seconds + (longer - seconds) * (rows - fewer) / (more - fewer)
