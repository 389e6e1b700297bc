"""The report as JUnit XML: a suite for each tier and target, a case for each check."""

from __future__ import annotations

import re

from pitstop.verify.outcome import Report
from pitstop.verify.report.rows import UNJUDGED

NOT_XML = re.compile("[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")
"""What XML 1.0 cannot hold, not even escaped; servers send it."""


def render(report: Report) -> bytes:
    from junitparser import Failure, JUnitXml, Skipped, TestCase, TestSuite

    xml = JUnitXml("pitstop verify")
    for outcome in report.outcomes:
        suite = TestSuite(_clean(f"{outcome.tier} {outcome.target.get('url', '')}"))
        for check in outcome.checks:
            case = TestCase(_clean(check.name), classname=f"pitstop.verify.{outcome.tier}")
            if not check.passed:
                failure = Failure(_clean(check.reason))
                failure.text = _clean(check.reason)
                case.result = [failure]
            elif check.reason.startswith(UNJUDGED):
                case.result = [Skipped(_clean(check.reason))]
            suite.add_testcase(case)
        suite.time = outcome.seconds
        xml.add_testsuite(suite)
    return xml.tostring()


def _clean(text: str) -> str:
    return NOT_XML.sub("\ufffd", text)
