"""What the soak asks: request number k is a function of (seed, k), so that a resumed soak goes on with the requests it would have sent."""

from __future__ import annotations

import json
import random
from typing import Any, Literal, NamedTuple

Kind = Literal["streamed", "whole", "canary", "abort after first", "abort early", "broken", "wrong type", "too long", "unknown model"]

MIXTURE: dict[Kind, float] = {
    "streamed": 0.44,
    "whole": 0.20,
    "canary": 0.08,
    "abort after first": 0.08,
    "abort early": 0.08,
    "broken": 0.04,
    "wrong type": 0.04,
    "too long": 0.005,
    "unknown model": 0.035,
}
FIRST = 4 * len(MIXTURE)
"""So many requests are of each kind in turn: what a kind needs once, it is given in the warm-up."""
BAD: tuple[Kind, ...] = ("broken", "wrong type", "too long", "unknown model")

CANARIES = (
    "Name the capital of France and one river that flows through it.",
    "Write down the numbers from one to ten, separated by commas.",
    "中国的首都是哪里？请用一句话回答。",
    "def fibonacci(n):\n    # Explain what this function should return.",
)
CANARY_TOKENS = 12

_SUBJECTS = (
    "the tides", "a steam engine", "the printing press", "sourdough bread", "a suspension bridge", "the water cycle", "a violin",
    "photosynthesis", "a lighthouse", "the silk road", "a compass", "glass", "a bicycle", "the northern lights", "a clock", "salt",
)  # fmt: skip
_QUESTIONS = (
    "How does {} work, and who first understood it?",
    "Tell me about {} as if I were ten years old.",
    "What would the world look like without {}?",
    "Give three facts about {}, the least known first.",
    "Write a short letter to a friend about {}.",
    "Which mistakes do people make when they explain {}?",
)  # fmt: skip
_ASIDES = (
    "I read about it on a train between two small towns, and the book ended too soon.",
    "My teacher drew it on the blackboard with yellow chalk and never explained the arrows.",
    "Keep it plain; I will read it aloud to a room full of impatient people.",
    "请尽量用简单的词语，我的中文还不好。",
    "There is a prize for whoever explains it without the letter z 🙂.",
    "Der Nachbar behauptet das Gegenteil, aber er behauptet vieles.",
    "Numbers are welcome, for example 3.14, 42 or 1,000,000, if they help.",
)


class Ask(NamedTuple):
    """One request: where it goes, its body as sent, and for an early abort the seconds until the client goes away."""

    kind: Kind
    path: str
    body: bytes
    patience: float = 0.0
    canary: int = 0


def draw(seed: int, number: int, model: str, context: int) -> Ask:
    """Request `number` of a soak. `context`: the model's length in tokens, which a too long prompt exceeds."""
    rng = random.Random(f"{seed}/{number}")
    kinds = list(MIXTURE)
    kind: Kind = kinds[number % len(kinds)] if number < FIRST else rng.choices(kinds, list(MIXTURE.values()))[0]
    if kind == "canary":
        which = rng.randrange(len(CANARIES))
        return canary(which, model, logprobs=True)
    which = " ".join(str(number))  # a prompt of its own, of words that come again: tokenizers remember words, up to some number of them
    text = f"({which}) {rng.choice(_QUESTIONS).format(rng.choice(_SUBJECTS))} {' '.join(rng.choices(_ASIDES, k=rng.randrange(4)))}"
    if kind == "too long":
        text += " and so on, again" * context  # four tokens or more each
    chat = rng.random() < 0.6
    field = "messages" if chat else "prompt"
    fields: dict[str, Any] = {"model": model, field: [{"role": "user", "content": text}] if chat else text}
    fields |= {"max_tokens": rng.randint(4, 24), "temperature": rng.choice((0, 0.7, 1)), "seed": rng.randrange(1 << 31)}
    fields["stream"] = kind not in ("whole", *BAD)
    if kind == "wrong type":
        fields |= rng.choice(({"max_tokens": "many"}, {"temperature": [1]}, {"stop": {"a": 1}}, {field: 3}))
    elif kind == "unknown model":
        fields["model"] = "no-such-model"
    body = json.dumps(fields, ensure_ascii=rng.random() < 0.5).encode()
    if kind == "broken":
        body = body[: rng.randrange(1, len(body))]
    return Ask(kind, "/v1/chat/completions" if chat else "/v1/completions", body, rng.uniform(0, 0.05))


def canary(which: int, model: str, logprobs: bool) -> Ask:
    """A question whose answer must always be the same."""
    fields = {"model": model, "messages": [{"role": "user", "content": CANARIES[which]}], "max_tokens": CANARY_TOKENS, "temperature": 0}
    if logprobs:
        fields["logprobs"] = True
    return Ask("canary", "/v1/chat/completions", json.dumps(fields).encode(), canary=which)


def crowd(seed: int, name: str, model: str, context: int) -> Ask:
    """A long answer that nobody will wait for; `name` makes it another one."""
    rng = random.Random(f"{seed}/{name}")
    text = f"({name}) {rng.choice(_QUESTIONS).format(rng.choice(_SUBJECTS))} {' '.join(rng.choices(_ASIDES, k=min(4, context // 256)))}"
    fields = {"model": model, "prompt": text, "max_tokens": min(200, context // 4), "stream": True}
    return Ask("abort after first", "/v1/completions", json.dumps(fields).encode())
