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
    """A question with four choices of which number `answer` is right. `before`: solved ones, the same before each."""

    kind: str
    question: str
    choices: list[str]
    answer: int
    before: str = ""

    @property
    def prompt(self) -> str:
        return f"{self.before}Question: {self.question}\nAnswer:"


def _data(name: str) -> str:
    return (files(__package__) / "data" / name).read_text(encoding="utf-8")


def built_in_texts() -> dict[str, str]:
    """English prose, Python, and Chinese prose, some 1,000 tokens each."""
    return {name: _data(f"{name}.txt") for name in TEXTS}


def built_in_items() -> list[Item]:
    """Own questions about facts, common sense, sums and grammar, after enough solved ones to fill a segment of the KV cache."""
    before = _data("solved.txt")
    return [Item(**item, before=before) for item in json.loads(_data("choices.json"))]


def built_in_prompts() -> list[str]:
    """Tasks about a story that fills a segment or two of the KV cache."""
    story = "\n\n".join(_data("english.txt").split("\n\n")[:2])
    return [f"Here is a story.\n\n{story}\n\n{task}" for task in json.loads(_data("prompts.json"))]


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
    answer_tokens: int = 192
    texts: dict[str, str] = field(default_factory=built_in_texts)
    items: list[Item] = field(default_factory=built_in_items)
    prompts: list[str] = field(default_factory=built_in_prompts)

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
