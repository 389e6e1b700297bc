"""Arrival processes have the statistics that they are named for, and the same seed gives the same times."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from pitstop.errors import ConfigError
from pitstop.verify.load.arrivals import Schedule, arrivals, read_trace


def test_poisson_gaps_are_exponential_and_independent() -> None:
    due = arrivals("poisson", 50, 400, seed=1)
    gaps = np.diff(due)
    assert len(due) == pytest.approx(20_000, abs=4 * 20_000**0.5)
    assert gaps.mean() == pytest.approx(1 / 50, rel=0.03)
    assert gaps.std() / gaps.mean() == pytest.approx(1, abs=0.04)  # a constant process has 0
    assert np.quantile(gaps, 0.9) == pytest.approx(np.log(10) / 50, rel=0.05)
    assert abs(np.corrcoef(gaps[:-1], gaps[1:])[0, 1]) < 0.03
    assert 0 <= due[0] <= due[-1] < 400


def test_counts_vary_as_poisson_counts_do() -> None:
    counts = [len(arrivals("poisson", 10, 10, seed)) for seed in range(400)]
    assert np.var(counts) / np.mean(counts) == pytest.approx(1, abs=0.3)


def test_constant_gaps_are_equal() -> None:
    assert arrivals("constant", 4, 2, seed=9).tolist() == [0, 0.25, 0.5, 0.75, 1, 1.25, 1.5, 1.75]


def test_a_ramp_grows_in_a_straight_line() -> None:
    due = arrivals("ramp", 100, 200, seed=2)
    counts, _ = np.histogram(due, bins=10, range=(0, 200))
    assert len(due) == pytest.approx(10_000, rel=0.05)
    assert counts == pytest.approx([200 * (i + 0.5) for i in range(10)], abs=4 * 2000**0.5)


def test_seeds_decide() -> None:
    first, again, other = (arrivals("poisson", 10, 10, seed) for seed in (1, 1, 2))
    assert first.tolist() == again.tolist() != other.tolist()


@pytest.mark.parametrize("process", ["poisson", "constant", "ramp"])
def test_exactly_so_many_requests(process) -> None:
    due = Schedule(process, rate=10, requests=30).due(0)
    assert len(due) == 30
    assert len(due) / due[-1] == pytest.approx(10 if process != "ramp" else 5, rel=0.35)
    assert len(Schedule(process, rate=10, seconds=60, requests=5).due(0)) == 5


def test_a_closed_loop_is_due_at_once() -> None:
    assert Schedule(clients=2).due(0).tolist() == [0.0] * 100
    assert len(Schedule(clients=2, requests=7).due(0)) == 7


def test_a_trace_is_taken_from_its_first_line(tmp_path: Path) -> None:
    path = tmp_path / "trace"
    path.write_text("10.5\n11\n\n11\n20e0\n")
    assert read_trace(path).tolist() == [0, 0.5, 0.5, 9.5]
    assert Schedule("trace", trace=path, requests=2).due(0).tolist() == [0, 0.5]


@pytest.mark.parametrize(
    ("text", "message"), [("1\nx\n", "line 2.*'x'"), ("2\n1\n", "line 2"), ("nan\n", "line 1"), ("\n", "no arrivals"), (b"\xff", "decode")]
)
def test_a_bad_trace_names_the_line(tmp_path: Path, text: str | bytes, message: str) -> None:
    path = tmp_path / "trace"
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    with pytest.raises(ConfigError, match=message):
        read_trace(path)


@pytest.mark.parametrize(
    "schedule",
    [
        Schedule(rate=0),
        Schedule(rate=float("nan")),
        Schedule(seconds=-1),
        Schedule(rate=1e-9, seconds=1),
        Schedule(clients=-1),
        Schedule(requests=0),
        Schedule(rate=-1, requests=5),
        Schedule("trace"),
        Schedule("sine"),
    ],
)
def test_senseless_schedules(schedule: Schedule) -> None:
    with pytest.raises(ConfigError):
        schedule.due(0)
