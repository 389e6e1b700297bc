"""JUnit XML of a functional outcome, for continuous integration."""

from __future__ import annotations

from itertools import groupby
from pathlib import Path

from pitstop.verify.functional.run import Result, results_of
from pitstop.verify.outcome import Outcome


def write_junit(outcome: Outcome, path: Path) -> None:
    """A suite for each theme, a test case for each case; unsupported and skipped ones are skipped with their reason."""
    from junitparser import JUnitXml, TestSuite

    report = JUnitXml(f"pitstop verify functional {outcome.target['url']}")
    for theme, results in groupby(results_of(outcome), key=lambda result: result.theme):
        suite = TestSuite(theme)
        suite.add_testcases([_test_case(result) for result in results])
        report.add_testsuite(suite)
    report.update_statistics()
    report.write(str(path), pretty=True)


def _test_case(result: Result):
    from junitparser import Failure, Skipped, TestCase

    case = TestCase(result.id, classname=f"functional.{result.theme}", time=round(result.seconds, 3))
    reason = _printable(result.reason)
    if result.state == "failed":
        case.result = [Failure(reason)]
    elif result.state != "passed":
        case.result = [Skipped(f"{result.state}: {reason}")]
    return case


def _printable(text: str) -> str:
    """XML has no control characters."""
    return "".join(char if char.isprintable() else f"\\u{ord(char):04x}" for char in text)
