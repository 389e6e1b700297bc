"""The verdict on records that are made up: what passes, what fails, and what is too short to tell."""

from __future__ import annotations

import random

import pytest

from pitstop.verify.outcome import Check, Outcome
from pitstop.verify.slo import SoakLimits
from pitstop.verify.soak.judge import judge
from pitstop.verify.soak.plan import Plan
from pitstop.verify.soak.record import Drift, Header, Record, Sample

MIB = 1 << 20
FOLLOWED = (
    "memory",
    "kv_touched",
    "handles",
    "threads",
    "running",
    "kv_pages",
    "worker_restarts",
    "server_started",
    "gpu_memory",
    "gpu_xid",
)


def record(samples: int = 48, per_round: int = 500, **changes) -> Record:
    """A clean soak of samples rounds, 2.5 s each, with noise of 100 KiB. changes: a counter's value as a function of the round; for
    "tally" and "unread" likewise, for "followed" its value."""
    noise = random.Random(1)
    followed = changes.pop("followed", FOLLOWED)
    header = Header(
        plan=Plan(seconds=samples * 2.5),
        target={"url": "http://toy", "model": "toy"},
        started=0.0,
        answers=[],
        logprobs=[],
        followed=dict.fromkeys(followed, "a test"),
        not_followed={},
        context=512,
    )
    made = []
    for i in range(samples):
        readings = {
            "memory": 80 * MIB + noise.gauss(0, 100 << 10),
            "kv_touched": 0,
            "handles": 13,
            "threads": 10,
            "running": 0,
            "kv_pages": 0,
        }
        readings |= {"worker_restarts": 0, "server_started": 100, "gpu_memory": 1 << 30, "gpu_xid": 0}
        readings |= {name: change(i) for name, change in changes.items() if name in readings}
        unread = changes.get("unread", lambda i: {})(i)
        tally = {"answered": i * per_round, "canaries": i} | changes.get("tally", lambda i: {})(i)
        kept = {name: value for name, value in readings.items() if name in followed and name not in unread}
        made.append(Sample(seconds=i * 2.5, number=i * per_round, requests=i * per_round, readings=kept, unread=unread, tally=tally))
    return Record(header, made, None)


def verdict(limits: SoakLimits | None = None, **changes) -> Outcome:
    return judge(record(**changes), limits or SoakLimits(), 120)


def check(outcome: Outcome, name: str) -> Check:
    (found,) = [check for check in outcome.checks if check.name == f"soak.{name}"]
    return found


def test_a_clean_soak_passes_every_check():
    outcome = verdict()
    assert outcome.passed, outcome.failures
    names = " ".join(check.name.removeprefix("soak.") for check in outcome.checks)
    assert names == "memory handles threads gpu_memory restarts gpu_xid running kv_pages drifted_answers error_share answered"
    assert [plot.title for plot in outcome.plots] == ["Memory when idle", "Handles and threads when idle", "Requests in flight"]


@pytest.mark.parametrize(
    ("name", "counter", "change", "says"),
    [
        ("memory", "memory", lambda i: 80 * MIB + i * 500 * 1024, "it grows: between 1 and 1 KiB a request"),
        ("memory", "memory", lambda i: 80 * MIB + i * 4 * MIB * (i < 30), "too short to tell"),
        ("handles", "handles", lambda i: 13 + i // 10, "it grows"),
        ("threads", "threads", lambda i: 10 + i // 10, "it grows"),
        ("threads", "threads", lambda i: 10 + (i == 30), "too short to tell"),
        ("gpu_memory", "gpu_memory", lambda i: (1 << 30) + i * 500 * 1024, "it grows"),
        ("restarts", "worker_restarts", lambda i: i > 20, "1 seen, 0 allowed"),
        ("restarts", "server_started", lambda i: 100 + 20 * (i > 20), "1 seen, 0 allowed"),
        ("gpu_xid", "gpu_xid", lambda i: 2 * (i > 20), "2 seen, 0 allowed"),
        ("running", "running", lambda i: i == 3, "not back to 0 within 2 s in 1 of 47 idle moments: 1 after 8 s"),
        ("kv_pages", "kv_pages", lambda i: 4 * (i > 40), "not back to 0 within 2 s in 7 of 47"),
        ("drifted_answers", "tally", lambda i: {"drifted": int(i > 9)}, "1 of 47 answers"),
        ("drifted_answers", "tally", lambda i: {"canaries": 0}, "0 of 0 answers"),
        ("error_share", "tally", lambda i: {"error: status 500": i}, "47 of 23500 requests: 47 status 500"),
        ("answered", "tally", lambda i: {"answered": 0}, "0 requests answered"),
        ("memory", "unread", lambda i: {"memory": "no right"} if i == 9 else {}, "could not be read after 22 s: no right"),
        ("restarts", "unread", lambda i: {"worker_restarts": "gone"} if i == 47 else {}, "could not be read after 118 s: gone"),
        ("kv_pages", "unread", lambda i: {"kv_pages": "gone"} if i == 0 else {}, "could not be read after 0 s: gone"),
    ],
)  # fmt: skip
def test_each_fault_fails_its_check_and_no_other(name: str, counter: str, change, says: str):
    outcome = verdict(**{counter: change})
    assert [failed.name for failed in outcome.failures] == [f"soak.{name}"]
    assert says in check(outcome, name).reason


def test_memory_that_only_fills_a_pool_of_fixed_size_does_not_grow():
    filling = {"kv_touched": lambda i: i * 5 * MIB, "memory": lambda i: (80 + 5 * i) * MIB}
    assert verdict(**filling).passed
    assert not verdict(**filling, followed=tuple(name for name in FOLLOWED if name != "kv_touched")).passed


def test_what_the_pool_was_given_must_be_readable_when_it_is_taken_off():
    outcome = verdict(
        kv_touched=lambda i: i * 5 * MIB, memory=lambda i: (80 + 5 * i) * MIB, unread=lambda i: {"kv_touched": "no"} if i > 40 else {}
    )
    assert "could not be read" in check(outcome, "memory").reason


def test_a_warm_up_is_left_out():
    assert verdict(memory=lambda i: (80 + 4 * min(i, 9)) * MIB).passed
    assert not verdict(memory=lambda i: (80 + 4 * min(i, 20)) * MIB).passed


def test_few_samples_prove_nothing():
    outcome = verdict(samples=9)
    assert "too short to tell: fewer than 8 idle moments" in check(outcome, "memory").reason
    assert judge(Record(record().header, [], None), SoakLimits(), 0, interrupted=True).passed is False


def test_a_limit_of_null_is_not_judged_and_what_is_not_followed_is_not_either():
    leaking = {"memory": lambda i: i * MIB}
    assert verdict(SoakLimits(memory_kb_per_request=None), **leaking).passed
    names = [name for name in FOLLOWED if name != "kv_pages"]
    assert "soak.kv_pages" not in [check.name for check in verdict(followed=names).checks]


def test_an_interruption_is_said():
    outcome = judge(record(), SoakLimits(), 60, interrupted=True)
    assert outcome.notes[0] == "Interrupted after 60 of 120 seconds: this is the verdict so far."
    assert outcome.figures["interrupted"]


def test_a_drift_shows_both_answers():
    kept = record(tally=lambda i: {"drifted": i > 9})
    kept.samples[10] = Sample(
        **{name: getattr(kept.samples[10], name) for name in Sample.__struct_fields__} | {"drifts": [Drift("q", "yes", "no")]}
    )
    assert check(judge(kept, SoakLimits(), 120), "drifted_answers").reason.endswith(": 'no' instead of 'yes'")
