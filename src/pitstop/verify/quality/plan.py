"""What is asked, and the texts, questions and prompts that come with it (data/, written for this)."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from importlib.resources import files
from pathlib import Path
from typing import NamedTuple

from pitstop.errors import ConfigError

TEXTS = ("english", "code", "chinese")


class Item(NamedTuple):
    """A question with four choices of which number `answer` is right."""

    kind: str
    question: str
    choices: list[str]
    answer: int

    @property
    def prompt(self) -> str:
        return f"Question: {self.question}\nAnswer:"


def _data(name: str) -> str:
    return (files(__package__) / "data" / name).read_text(encoding="utf-8")


def built_in_texts() -> dict[str, str]:
    """English prose, Python, and Chinese prose, some 1,000 tokens each."""
    return {name: _data(f"{name}.txt") for name in TEXTS}


def read_text(path: Path) -> dict[str, str]:
    """A file of the user's, in place of the built-in texts. Raises ConfigError."""
    try:
        return {path.name: path.read_text(encoding="utf-8")}
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"--text {path}: {error}") from None


@dataclass(frozen=True)
class Plan:
    """`window` and `answer_tokens` in tokens. Texts are cut into windows, `windows` of each text at most.

    The first half of a window is context only, its second half is judged. contexts: positions judged of each text where each costs a
    request, because the server gives no log-probabilities of a prompt.
    """

    window: int = 512
    windows: int = 2
    contexts: int = 40
    answer_tokens: int = 96
    texts: dict[str, str] = field(default_factory=built_in_texts)
    items: list[Item] = field(default_factory=lambda: [Item(**item) for item in json.loads(_data("choices.json"))])
    prompts: list[str] = field(default_factory=lambda: json.loads(_data("prompts.json")))

    def __post_init__(self) -> None:
        if self.window < 8:
            raise ConfigError(f"--window {self.window}: at least 8 tokens")
        if self.windows < 1:
            raise ConfigError(f"--windows {self.windows}: at least 1")

    @property
    def lead(self) -> int:
        """Tokens of a window that are not judged."""
        return self.window // 2

    def cut(self, tokens: list[int]) -> list[list[int]]:
        """A text's windows; the last may be shorter. Those with nothing to judge are left out."""
        starts = range(0, min(len(tokens), self.window * self.windows), self.window)
        return [window for at in starts if len(window := tokens[at : at + self.window]) > self.lead + 1]
