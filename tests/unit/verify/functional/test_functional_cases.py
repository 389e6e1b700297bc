"""The case files: they load, are documented, and what is not of their form does not load."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from pitstop.errors import ConfigError
from pitstop.verify.functional import load_cases
from pitstop.verify.functional.answer import FIELDS
from pitstop.verify.functional.case import CASES, Case, Request

DOCS = Path(__file__).parents[4] / "docs" / "verify-cases.md"
THEMES = 18

CASE = """
theme: T
about: A.
cases:
- id: one
  title: T
  what: W
  why: Y
  steps:
  - {steps}
"""


def load(folder: Path, steps: str, text: str = CASE) -> list[Case]:
    (folder / "one.yaml").write_text(text.replace("{steps}", steps))
    return load_cases(folder=folder)


def test_there_are_127_cases_and_more_each_saying_what_and_why() -> None:
    cases = load_cases()
    assert len(cases) >= 127
    assert len({case.id for case in cases}) == len(cases)
    assert len({case.theme for case in cases}) == len(list(CASES.glob("*.yaml"))) == THEMES
    for case in cases:
        assert min(len(case.title), len(case.what), len(case.why)) >= 4, case.id


def test_the_required_cases_alone_are_127_and_more() -> None:
    assert sum(not case.optional for case in load_cases()) >= 127


def test_every_case_expects_something_beyond_the_form_or_says_so() -> None:
    """A case of one plain request and no expectation sees that it is answered at all; those are few."""
    bare = [case.id for case in load_cases() if not case.expect and not any(r.expect for step in case.plan for r in step.requests)]
    assert len(bare) < 0.15 * len(load_cases()), bare


def test_the_form_is_documented() -> None:
    text = DOCS.read_text()
    keys = {"with" if name == "fields" else name for name in (*Case.__struct_fields__, *Request.__struct_fields__)} - {"theme"}
    documented = set(re.findall(r"^\| `(\w+)` \|", text, re.MULTILINE))
    assert keys - documented == set()
    assert set(FIELDS) - documented == set()


@pytest.mark.parametrize("pattern", ["stop-*", "stop", "Stop strings", "stop str*"])
def test_patterns_choose_by_id_and_theme(pattern: str) -> None:
    chosen = load_cases(pattern)
    assert {"stop-cuts-before", "stop-empty-list"} <= {case.id for case in chosen}
    assert len(chosen) < 20


def test_a_pattern_that_matches_nothing_is_an_error() -> None:
    with pytest.raises(ConfigError, match="no case matches 'nothing-like-it'"):
        load_cases("nothing-like-it")


@pytest.mark.parametrize(
    ("steps", "message"),
    [
        ("{chat: hello, complete: hello}", "exactly one of"),
        ("{}", "exactly one of"),
        ("{chat: hello, temperature: 0}", "unknown field `temperature`"),
        ("{chat: hello, body: {}}", "go with send"),
        ("{send: GET /, with: {n: 1}}", "send takes"),
        ("{chat: hello, close_after: 1}", "only of a stream"),
        ("{chat: hello, times: 0}", "`int` >= 1"),
        ("{chat: hello, expect: {txt: a}}", "is no path into an answer"),
        ("{chat: hello, expect: {text: {equal: a}}}", "none of the verbs"),
        ("{chat: hello, probe: true}", "only in a case of an optional feature"),
        ("{chat: '${other.text}'}", "names none of"),
        ("{chat: 'a ${this.text}'}", "names none of"),
        ("{chat: hello, with: {seed: '${j}'}}", "names none of"),
        ("{parallel: []}", "length >= 1"),
        ("{parallel: [{chat: a, name: x}, {chat: '${x.text}'}]}", "names none of"),
        ("{chat: hello, name: Bad-name}", "matching regex"),
    ],
)
def test_what_is_not_of_the_form_does_not_load(tmp_path: Path, steps: str, message: str) -> None:
    assert len(load(tmp_path, "{chat: hello}")) == 1
    with pytest.raises(ConfigError, match=re.escape(message)) as raised:
        load(tmp_path, steps)
    assert "one.yaml" in str(raised.value)


@pytest.mark.parametrize("line", ["optionl: [x]", "seconds: 0", "needs: gpu", "expect: {nobody.text: a}", "expect: {'a b': 1}"])
def test_a_case_of_another_form_does_not_load(tmp_path: Path, line: str) -> None:
    with pytest.raises(ConfigError, match=r"one\.yaml"):
        load(tmp_path, "{chat: hello}", CASE + f"  {line}\n")


def test_an_id_is_given_once(tmp_path: Path) -> None:
    (tmp_path / "zwo.yaml").write_text(CASE.replace("{steps}", "{chat: hello}"))
    with pytest.raises(ConfigError, match="the id one is given twice"):
        load(tmp_path, "{chat: hello}")
