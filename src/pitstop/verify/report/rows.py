"""Checks of one tier as rows: a check a row, a target a column."""

from __future__ import annotations

from dataclasses import dataclass

from pitstop.verify.outcome import Check, Outcome
from pitstop.verify.report.values import show

UNJUDGED = ("unsupported:", "skipped:")
"""A check whose reason begins so holds because nothing could be judged."""


@dataclass(frozen=True)
class Cell:
    """What one target's check came to."""

    state: str  # "held", "failed", "not judged", "not run"
    measured: str
    reason: str


@dataclass(frozen=True)
class Row:
    """A check across the targets."""

    name: str
    limit: str
    cells: list[Cell]

    @property
    def failed(self) -> bool:
        return any(cell.state == "failed" for cell in self.cells)


def rows_of(outcomes: list[Outcome]) -> list[Row]:
    """Every check of one tier by name, in the order of the first target that has it."""
    names = dict.fromkeys(check.name for outcome in outcomes for check in outcome.checks)
    rows = []
    for name in names:
        found = [next((check for check in outcome.checks if check.name == name), None) for outcome in outcomes]
        limits = dict.fromkeys(show(check.limit, name) for check in found if check and check.limit is not None)
        rows.append(Row(name.removeprefix(f"{outcomes[0].tier}."), " or ".join(limits), [_cell(check) for check in found]))
    return rows


def _cell(check: Check | None) -> Cell:
    if check is None:
        return Cell("not run", "", "")
    state = "failed" if not check.passed else "not judged" if check.reason.startswith(UNJUDGED) else "held"
    return Cell(state, "" if check.value is None and check.limit is None else show(check.value, check.name, check.limit), why(check))


def why(check: Check) -> str:
    """The reason without the verdict that stands beside it."""
    return check.reason.removeprefix("failed: ").removeprefix("passed: ")


def limit_rows(outcomes: list[Outcome]) -> list[Row]:
    """The checks of one tier that measured something against a limit, and one row that counts the others."""
    rows = rows_of(outcomes)
    measured = [row for row in rows if _measures(row)]
    counted = [row for row in rows if not _measures(row)]
    if not counted:
        return measured
    cells = []
    for place, _ in enumerate(outcomes):
        states = [row.cells[place].state for row in counted if row.cells[place].state != "not run"]
        held = sum(state != "failed" for state in states)
        state = "not run" if not states else "held" if held == len(states) else "failed"
        cells.append(Cell(state, f"{held} of {len(states)} hold" if states else "", ""))
    return [*measured, Row("other checks" if measured else "checks", "all", cells)]


def _measures(row: Row) -> bool:
    return bool(row.limit or any(cell.measured for cell in row.cells))
