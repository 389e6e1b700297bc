"""Paths and templates."""

from __future__ import annotations

import pytest

from pitstop.verify.functional.path import MISSING, fill, find, is_path

VALUE = {"a": [{"b": "hello", "x-y": 1}, {"c": 2}], "t": "abcdef", "n": None}


@pytest.mark.parametrize(
    ("path", "found"),
    [
        ("a[0].b", "hello"),
        ("a[-1].c", 2),
        ("a[0].x-y", 1),
        ("a[*].b", ["hello"]),
        ("a[*].z", []),
        ("a[0].b[1:3]", "el"),
        ("t[-2:]", "ef"),
        ("t[2]", "c"),
        ("a[1:][0].c", 2),
        ("n", None),
        ("a[7]", MISSING),
        ("a[-3]", MISSING),
        ("z", MISSING),
        ("z.y", MISSING),
        ("n.y", MISSING),
        ("t.y", MISSING),
        ("n[0]", MISSING),
    ],
)
def test_a_path_leads_somewhere_or_nowhere(path: str, found: object) -> None:
    assert is_path(path)
    assert find(VALUE, path) == found


@pytest.mark.parametrize("text", ["", "a.", "a[", "a[x]", ".a", "a b", "a[1:2:3]"])
def test_what_is_no_path(text: str) -> None:
    assert not is_path(text)


def test_templates_are_filled_with_values_of_any_type() -> None:
    names = {"one": {"ids": [1, 2], "text": "x"}, "all": [{"t": "p"}, {"t": "q"}], "i": 1}
    assert fill("${one.ids}", names) == [1, 2]
    assert fill("a ${one.ids[0]} ${one.text} ${i}", names) == "a 1 x 1"
    assert fill({"${one.text}": ["${all[i].t}"], "k": 5}, names) == {"x": ["q"], "k": 5}
    assert fill("$x {y} {{ z }}", names) == "$x {y} {{ z }}"
    with pytest.raises(KeyError, match=r"one\.nothing"):
        fill("${one.nothing}", names)
