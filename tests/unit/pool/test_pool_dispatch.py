"""Suspects of a crash go on one at a time."""

from __future__ import annotations

from dataclasses import dataclass, field

from pitstop.engine.recorder import RecordedPlan, RecordedSpan
from pitstop.pool.dispatch import PROBATION, Dispatch
from pitstop.pool.journal import Entry, Journal
from pitstop.pool.stream import Delta, Stream
from pitstop.types import Request, SamplingParams


@dataclass(eq=False)
class Stub:
    """A member that runs whatever it is given."""

    ran: list[str] = field(default_factory=list)
    last_plans: list[RecordedPlan] = field(default_factory=list)
    routed = up = crashed = True
    condemned = False
    life, position, numerics, load, texts = "ready", 0, "", 0, None

    def suits(self, entry: Entry) -> bool:
        return True

    def submit(self, entry: Entry) -> None:
        self.ran.append(entry.request.id)


def scene(names: str) -> tuple[Dispatch, Stub, dict[str, Entry]]:
    journal, member = Journal(), Stub()
    entries = {}
    for name in names:
        entries[name] = Entry(Request(id=name, prompt=[1], params=SamplingParams(max_tokens=50)), Stream([name], lambda stream: None))
        journal.add(entries[name])
    return Dispatch(journal, [member]), member, entries


def die(dispatch: Dispatch, member: Stub, struck: str, entries: dict[str, Entry]) -> None:
    member.last_plans = [RecordedPlan(1, False, [RecordedSpan(name, 0, 1, 1) for name in struck])]
    dispatch.bury(member, list(entries.values()))
    member.ran.clear()
    for entry in entries.values():
        if dispatch.verdict(entry) is None:
            dispatch.run(entry)


def test_one_suspect_at_a_time_and_the_innocent_at_once():
    dispatch, member, entries = scene("abcd")
    dispatch._journal.move(entries["d"], "running")  # admitted, and not in the plan that struck
    die(dispatch, member, "abc", entries)
    assert member.ran == ["a", "d"]
    for token in range(1, PROBATION + 1):
        assert member.ran == ["a", "d"]
        entries["a"].emitted.append(token)
        dispatch.progressed(entries["a"])
    assert member.ran == ["a", "d", "b"]
    assert (entries["a"].crashes, entries["d"].deaths) == (0, 0)
    dispatch.forget(entries["b"])  # it ended, or its client went away
    assert member.ran == ["a", "d", "b", "c"]


def test_the_one_on_trial_when_a_worker_crashes_again_is_the_cause():
    dispatch, member, entries = scene("abc")
    die(dispatch, member, "abc", entries)
    die(dispatch, member, "a", {"a": entries["a"]})
    assert "2 times while they ran a" in str(dispatch.verdict(entries["a"]))
    assert dispatch.verdict(entries["b"]) is None
    dispatch.forget(entries["a"])
    for entry in dispatch.waiting():
        dispatch.run(entry)
    assert member.ran == ["b"]


def test_deaths_from_outside_make_no_suspects_but_attempts_are_counted():
    dispatch, member, entries = scene("ab")
    member.crashed = False
    for _ in range(2):
        die(dispatch, member, "a", entries)
        assert member.ran == ["a", "b"]
    die(dispatch, member, "a", entries)
    assert "3 workers that ran a were killed" in str(dispatch.verdict(entries["a"]))
    assert (entries["b"].deaths, member.ran) == (0, ["b"])


def test_answers_begun_by_a_worker_that_computes_wrongly_are_computed_again():
    dispatch, member, entries = scene("abc")
    member.crashed, member.condemned = False, True
    entries["a"].emitted.append(1)
    entries["a"].told.append(Delta("a", [1], "x"))
    die(dispatch, member, "ab", entries)
    assert member.ran == ["a", "b", "c"]
    assert entries["a"].continuation().emitted == []
    assert entries["a"].begun
    assert not entries["a"].recheck.done
    assert entries["b"].recheck is None
