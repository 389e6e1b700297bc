"""Real text for prompts: the Python language reference, in English prose, as every Python ships it for `help`, or a file."""

from __future__ import annotations

import pydoc_data.topics
from pathlib import Path

from measure import Case

from pitstop.text.tokenizer import Tokenizer

QUESTIONS = (
    "What is the capital of France?",
    "What is two plus three?",
    "Name three colours of the rainbow.",
    "What do bees make?",
    "How many days are there in a week?",
    "What is the largest planet of the solar system?",
    "Write one sentence about the sea.",
    "What is the opposite of cold?",
    "Who wrote Romeo and Juliet?",
    "Why is the sky blue?",
)


def read(path: str | None = None) -> str:
    """The text of a file, or the default text: about 700 kB."""
    return Path(path).read_text() if path else "\n\n".join(pydoc_data.topics.topics.values())


def prompts(tokenizer: Tokenizer, text: str, case: Case) -> list[list[int]]:
    """A case's prompts: consecutive pieces of the text, all different. Raises ValueError when it is too short."""
    wanted = case.streams * case.prompt
    ids = tokenizer.encode(text[: 16 * wanted])
    if len(ids) < wanted:
        raise ValueError(f"the text has {len(ids)} tokens, {wanted} are needed")
    return [ids[i * case.prompt : (i + 1) * case.prompt] for i in range(case.streams)]
