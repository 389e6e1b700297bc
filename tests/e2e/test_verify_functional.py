"""Every case of `pitstop verify functional` against the default model."""

from __future__ import annotations

import pytest
from servers import Server

from pitstop.verify.functional import results_of, run
from pitstop.verify.slo import FunctionalLimits
from pitstop.verify.target import connect

pytestmark = [pytest.mark.model, pytest.mark.timeout(600)]

LONG = {"long-2000", "long-4000", "long-8000"}
"""Longer than the context that these tests serve."""


def test_every_case_passes(server: Server) -> None:
    outcome = run(connect(server.url), FunctionalLimits())
    results = results_of(outcome)
    assert [(result.id, result.reason) for result in results if result.state == "failed"] == []
    assert outcome.passed
    assert {result.id for result in results if result.state == "skipped"} == LONG
    unsupported = {result.reason.partition(":")[0] for result in results if result.state == "unsupported"}
    assert unsupported <= {"suffix", "best_of", "embeddings", "dimensions"}  # the model does not say how it embeds
