"""The cases of `pitstop verify functional` against the engine: a toy passes those that need nobody's wits, the default model the others.

Among the slow tests the default model passes all of them.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from servers import Server, model_server
from toy_gguf import write_toy_gguf

from pitstop.verify.functional import Case, Result, load_cases, results_of, run_cases
from pitstop.verify.slo import FunctionalLimits
from pitstop.verify.target import connect

LONG = {"long-2000", "long-4000", "long-8000"}
"""Longer than the contexts here."""

WITS = {"logprobs-tokens-join", "unicode-chinese", "unicode-emoji", "schema-json-object", "tools-forced-call", "tools-required"}
"""What a model says must be text, and not any bytes; it must come to an end within a form that does not end it."""


@pytest.fixture(scope="module")
def toy(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """Whose tokens are bytes, so that the same texts need more of them."""
    with model_server(write_toy_gguf(tmp_path_factory.mktemp("toy") / "toy.gguf", context=2600, tied=False)) as server:
        yield server


def passing(server: Server, cases: list[Case]) -> list[Result]:
    """Their results, of which none is a failure; what is unsupported has a name that the toy and the default model may refuse."""
    outcome = run_cases(cases, connect(server.url), FunctionalLimits())
    results = results_of(outcome)
    assert [(result.id, result.reason) for result in results if result.state == "failed"] == []
    assert outcome.passed
    unsupported = {result.reason.partition(":")[0] for result in results if result.state == "unsupported"}
    assert unsupported <= {"suffix", "best_of", "embeddings", "dimensions"}  # these models do not say how they embed
    return results


def skipped(results: list[Result]) -> set[str]:
    return {result.id for result in results if result.state == "skipped"}


@pytest.mark.timeout(600)
def test_a_toy_passes_every_case_that_needs_no_wits(toy: Server) -> None:
    results = passing(toy, [case for case in load_cases() if case.id not in WITS])
    assert len(results) > 150
    assert skipped(results) == LONG


@pytest.mark.model
@pytest.mark.timeout(600)
def test_the_default_model_passes_the_others(server: Server) -> None:
    results = passing(server, [case for case in load_cases() if case.id in WITS])
    assert {result.id for result in results if result.state == "passed"} == WITS


@pytest.mark.slow
@pytest.mark.model
@pytest.mark.timeout(600)
def test_the_default_model_passes_every_case(server: Server) -> None:
    assert skipped(passing(server, load_cases())) == LONG
