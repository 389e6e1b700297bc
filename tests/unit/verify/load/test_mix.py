"""Mixes: the presets, drawing by shares, and files with nonsense in them."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

from pitstop.errors import ConfigError
from pitstop.verify.load.mix import PRESETS, read_mix


def test_the_accounts_mix_counts_prompt_and_answer() -> None:
    assert [(shape.share, shape.prompt + shape.answer) for shape in PRESETS["account"].requests] == [(0.8, 512), (0.15, 2048), (0.05, 8192)]
    assert [(shape.share, shape.prompt, shape.answer) for shape in PRESETS["small"].requests] == [
        (0.8, 32, 16),
        (0.15, 128, 16),
        (0.05, 512, 16),
    ]


@pytest.mark.parametrize(("count", "expected"), [(1000, (800, 150, 50)), (20, (16, 3, 1)), (1, (1, 0, 0)), (9, (7, 1, 1))])
def test_drawing_keeps_the_shares(count: int, expected: tuple[int, ...]) -> None:
    drawn = Counter(shape.name for shape in PRESETS["small"].draw(count, 3))
    assert tuple(drawn[name] for name in ("32", "128", "512")) == expected


def test_drawing_is_shuffled_by_its_seed() -> None:
    first, again, other = ([shape.name for shape in PRESETS["small"].draw(100, seed)] for seed in (1, 1, 2))
    assert first == again != other
    assert first != sorted(first, key=len)


def test_a_file(tmp_path: Path) -> None:
    path = tmp_path / "mix.yaml"
    path.write_text("requests:\n  - {name: a, share: 0.25, prompt: 10, answer: 5}\n  - {name: b, share: 0.75, prompt: 20, answer: 5}\n")
    assert [shape.name for shape in read_mix(str(path)).requests] == ["a", "b"]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("requests:\n  - {name: a, share: 0.5, prompt: 10, answer: 5}\n", "add up to 1"),
        ("requests: []\n", "add up to 1"),
        ("requests:\n  - {name: a, share: 1, prompt: 10, answer: 1}\n", "answer at least 2"),
        ("requests:\n  - {name: a, share: 1, prompt: ten, answer: 5}\n", r"requests\[0\]\.prompt|requests\[...\]\.prompt"),
        ("requests:\n  - {name: a, share: 1, prompt: 10, answer: 5, size: 3}\n", "size"),
        ("requests:\n  - {name: a, share: .nan, prompt: 10, answer: 5}\n", "share"),
        (
            "requests:\n  - {name: a, share: 0.5, prompt: 10, answer: 5}\n  - {name: a, share: 0.5, prompt: 20, answer: 5}\n",
            "the same name",
        ),
        (": : :\n", "mix.yaml"),
    ],
)
def test_nonsense_in_a_file(tmp_path: Path, text: str, message: str) -> None:
    path = tmp_path / "mix.yaml"
    path.write_text(text)
    with pytest.raises(ConfigError, match=message):
        read_mix(str(path))


def test_no_such_mix() -> None:
    with pytest.raises(ConfigError, match="neither one of account, small nor a file"):
        read_mix("medium")
