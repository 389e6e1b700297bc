"""The verbs: each with values that hold and values that do not."""

from __future__ import annotations

from pathlib import Path

import pytest

from pitstop.verify.functional.expect import VERBS, Unmet, check, check_verbs
from pitstop.verify.functional.path import MISSING

DOCS = Path(__file__).parents[4] / "docs" / "verify-cases.md"


def entry(token: str, logprob: float, *top: tuple[str, float]) -> dict:
    return {"token": token, "logprob": logprob, "top": [{"token": other, "logprob": p} for other, p in top]}


GOOD = [entry("a", -0.1, ("a", -0.1), ("b", -3.0)), entry("b", -0.2, ("b", -0.2))]

EXAMPLES = {  # verb: argument, values that hold, values that do not
    "equals": [({"a": [1, None]}, [{"a": [1, None]}], [{"a": [1]}, {"a": [True, None]}, {"a": [1, None], "b": 1}, None])],
    "differs": [(1, [2, True, "1", None], [1, 1.0])],
    "one_of": [([200, 400], [200, 400], [500, "200", None])],
    "type": [
        ("integer", [0, -5], [True, 1.5, "1", None]),
        ("number", [0, 1.5], [True, "1"]),
        ("boolean", [True], [1]),
        ("null", [None], [0, ""]),
        ("array", [[]], [{}, ""]),
        ("object", [{}], [[]]),
        ("string", [""], [1]),
    ],
    "present": [(True, [0, None, ""], [MISSING]), (False, [MISSING, None], [0, "", {}])],
    "length": [(2, ["ab", [1, 2], {"a": 1, "b": 2}], ["a", [], 2]), ({"at_least": 1, "at_most": 2}, ["a", "ab"], ["", "abc"])],
    "at_least": [(2, [2, 3.5], [1, "3", True, None])],
    "at_most": [(2, [2, -1], [2.1, "1", None])],
    "contains": [("b", ["abc", ["b"]], ["a", ["bc"], 5])],
    "lacks": [("b", ["ac", ["bc"]], ["abc", ["b"], 5])],
    "starts": [("ab", ["abc", "ab"], ["a", "cab", 5])],
    "matches": [("^(.)\\1{2}$", ["aaa"], ["aab", 5])],
    "each": [({"at_most": 0}, [[], [0, -1]], [[1], [0, 1], 5, None])],
    "distinct": [(2, [[1, 2, 1]], [[1, 1], [1, 2, 3]])],
    "varied": [(True, [["a", "b"]], [["a", "a"], []]), (False, [["a", "a"]], [["a", "b"]])],
    "descending": [(True, [[0, -1, -1], []], [[-1, 0], ["a"], None])],
    "joined": [("é!", [["é", "!"], [[0xC3], [0xA9, 33]]], [["é"], [[0xC3]], [None], [[300]], None])],
    "close": [
        ({"to": -1.0, "within": 0.1}, [-1.05, -1], [-1.2, "-1", None]),
        ({"to": [1, 2], "within": 0.1}, [[1, 2.05]], [[1], [1, 3], 1]),
    ],
    "json": [({"it": {"type": "object"}, "it.a": 1}, ['{"a": 1}'], ['{"a": 2}', "{}", "{", "[1]", None, 5])],
    "sound": [
        (
            True,
            [GOOD, [entry("a", -9999.0)], [entry("x", -2.0, ("a", -0.5), ("b", -1.5))]],
            [
                [],
                None,
                [entry("a", 0.1)],
                [entry("a", -10000.0)],
                [entry("a", None)],
                [entry("a", -0.1, ("a", -0.1), ("b", -0.1))],
                [entry("a", -0.1, ("a", -0.4))],
            ],
        )
    ],
    "greedy": [(True, [GOOD], [[], None, [entry("a", -1.0)], [entry("b", -3.0, ("a", -0.1), ("b", -3.0))]])],
}


def test_every_verb_has_examples_and_is_documented() -> None:
    assert set(EXAMPLES) == set(VERBS)
    text = DOCS.read_text()
    assert [verb for verb in VERBS if f"| `{verb}` |" not in text] == []


@pytest.mark.parametrize("verb", VERBS)
def test_a_verb_holds_and_does_not(verb: str) -> None:
    for argument, right, wrong in EXAMPLES[verb]:
        check_verbs("it", {verb: argument})
        for value in right:
            check("it", value, {verb: argument})
        for value in wrong:
            with pytest.raises(Unmet, match=r"^it: ") as raised:
                check("it", value, {verb: argument})
            assert "\n" not in str(raised.value)


def test_a_literal_must_be_equal_and_all_verbs_must_hold() -> None:
    check("it", 5, 5)
    check("it", "abc", {"starts": "a", "length": 3})
    with pytest.raises(Unmet, match="it: expected 5, got 6"):
        check("it", 6, 5)
    with pytest.raises(Unmet, match="length: expected 4, got 3"):
        check("it", "abc", {"starts": "a", "length": 4})
    with pytest.raises(Unmet, match="no such field"):
        check("it", MISSING, {"differs": 5})


def test_long_texts_are_compared_where_they_part() -> None:
    with pytest.raises(Unmet, match='from character 99 on expected "b", got "c"'):
        check("it", "a" * 99 + "c", "a" * 99 + "b")


@pytest.mark.parametrize(
    "wrong", [{"equal": 1}, {}, {"length": {"most": 1}}, {"json": 5}, {"each": {"no": 1}}, {"json": {"it": {"no": 1}}}]
)
def test_what_is_no_verb_is_refused(wrong: dict) -> None:
    with pytest.raises(ValueError, match="expect: it"):
        check_verbs("it", wrong)
