"""What remains of a worker that died: its last plans, who was struck, and the file."""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path

import pytest
from pools import answer, ask, run, running_pool, until

from pitstop.config import EngineConfig
from pitstop.engine import crash, recorder
from pitstop.engine.recorder import SLOTS, RecordedSpan, Recorder
from pitstop.errors import PitstopError, Quarantined
from pitstop.types import Request, SamplingParams


def test_the_ring_keeps_the_last_plans_in_order_and_which_one_did_not_end():
    fd = recorder.memory()
    assert recorder.read(fd) == []
    writer = Recorder(fd)
    last = 3 * SLOTS + 5
    for number in range(1, last + 1):
        assert writer.begin([RecordedSpan(f"r{number}", 7, 1, 8)]) == number
        if 1 < number < last:  # the next one begins before this one ends
            writer.done(number - 1)
    plans = recorder.read(fd)
    assert [plan.number for plan in plans] == list(range(2 * SLOTS + 6, 3 * SLOTS + 6))
    assert [plan.done for plan in plans] == [True] * (SLOTS - 2) + [False] * 2
    assert plans[-1].spans == [RecordedSpan(f"r{3 * SLOTS + 5}", 7, 1, 8)]
    os.close(fd)


def test_a_plan_that_is_too_long_is_cut_and_one_that_was_half_written_is_left_out():
    fd = recorder.memory()
    writer = Recorder(fd)
    writer.begin(RecordedSpan("x" * 60 + str(number), 0, 1, 1) for number in range(2000))
    (plan,) = recorder.read(fd)
    assert 200 < len(plan.spans) < 2000
    writer.begin([RecordedSpan("a", 0, 1, 1)])
    os.pwrite(fd, b"\xc1" * 8, 2 * recorder._SLOT + recorder._HEAD.size)
    assert [plan.number for plan in recorder.read(fd)] == [1]
    os.close(fd)


def test_files_are_few_and_hold_no_token_without_leave(tmp_path: Path):
    params = SamplingParams(seed=9, stop=("secret",), stop_token_ids=(900045,), logit_bias={900046: 1.0}, grammar="start: /whisper/")
    request = Request(id="a", prompt=[41, 900042, 43], params=params)  # numbers that no time has
    for allowed in (False, True):
        kept = crash.recorded(request, [44], allowed)
        path = crash.write(tmp_path / "crashes", "was killed", EngineConfig(model="m"), [], {"a": kept})
        assert path.stat().st_mode & 0o077 == 0
        text = path.read_text()
        for private in ("secret", "900042", "900045", "900046", "whisper"):
            assert (private in text) == allowed
        assert crash.load(path).requests["a"] == kept
        path.unlink()
    (tmp_path / "other.json").write_text("{}")
    for number in range(crash.KEPT + 5):
        (tmp_path / f"2026-01-01T0000{number:02d}-000.json").write_text("{}")
    crash.write(tmp_path, "was killed", EngineConfig(model="m"), [], {})
    assert len(list(tmp_path.glob("*.json"))) == crash.KEPT
    for content in ("{}", "[", ""):
        (tmp_path / "bad").write_text(content)
        with pytest.raises(PitstopError, match="not a record"):
            crash.load(tmp_path / "bad")
    with pytest.raises(PitstopError, match="cannot be read"):
        crash.load(tmp_path / "none")


@pytest.mark.parametrize("prompts", [False, True])
def test_a_death_leaves_a_file(tmp_path: Path, prompts: bool):
    @run
    async def test():
        async with running_pool(crash_dir=str(tmp_path), record_prompts=prompts) as pool:
            stream = ask(pool, "count #slow 5#", max_tokens=100, seed=77)
            for _ in range(3):
                await anext(stream)
            os.kill(pool.members[0].pid, signal.SIGKILL)
            await until(lambda: any(tmp_path.iterdir()))
            assert (await answer(stream))[1] == "length"
        (path,) = tmp_path.iterdir()
        record = crash.load(path)
        assert record.worker == "was killed by SIGKILL"
        assert record.engine.model == "toy"
        assert any(span.id == stream.ids[0] for plan in record.plans for span in plan.spans)
        kept = record.requests[stream.ids[0]]
        assert (kept.prompt_tokens, kept.params.seed, kept.prompt is not None) == (len("count #slow 5#"), 77, prompts)
        assert 3 <= kept.emitted_tokens < 100
        assert json.loads(path.read_text())["plans"]

    test()


@run
async def test_a_directory_that_cannot_be_written_hurts_nobody():
    async with running_pool(crash_dir="/proc/nowhere") as pool:
        assert await answer(ask(pool, "#die 2##upto 1##say fine#")) == ("fine", "stop")


@run
async def test_one_that_crashes_its_worker_in_its_first_step_is_found_too():
    """The front never hears that it was admitted."""
    async with running_pool() as pool:
        good = ask(pool, "count #slow 2#", max_tokens=100)
        await anext(good)
        with pytest.raises(Quarantined):
            await answer(ask(pool, "#strike#"))
        assert (await answer(good))[1] == "length"
        assert pool.gauges().restarts <= 2


@run
async def test_a_crash_before_a_request_was_planned_is_not_its_fault():
    async with running_pool() as pool:
        waiting = ask(pool, "#hold##upto 1#", timeout=20)
        assert await answer(ask(pool, "#strike##upto 1##say x#")) == ("x", "stop")
        (entry,) = pool.journal.entries.values()
        assert (entry.request.id, entry.deaths, entry.crashes) == (waiting.ids[0], 0, 0)
        waiting.cancel()
