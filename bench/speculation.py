"""What does guessing ahead gain? Tokens a second with it against without, on text that repeats and on text that does not.

    python bench/speculation.py [--model NAME_OR_PATH] [--speculate 8] [--streams 1,8] [--kinds code,list,questions,stories] [--turns 5]

Run it on an idle machine. One engine answers the same requests with guesses and without, in turns, the prompts in its prefix cache; both
must give the same tokens. With one stream the requests come one after the other, with 8 all at once. A ratio is the median of those of the
turns. Accepted: of the guessed tokens. The last line is JSON.
"""

from __future__ import annotations

import argparse
import inspect
import json
import statistics
import time
from dataclasses import dataclass

import texts
from others import MUCH, Others
from tqdm import tqdm

from pitstop import LLM, SamplingParams
from pitstop.config import usable_cores
from pitstop.types import Request

SOURCES = ("bisect", "heapq", "textwrap", "shlex", "fnmatch", "colorsys", "calendar", "string")
"""Modules of Python's own, whose beginnings are the code to be repeated."""

NAMES = ("Ada", "Bruno", "Chen", "Dana", "Emil", "Fatima", "Goran", "Hana", "Ines", "Jonas", "Kira", "Liang")
SUBJECTS = (
    "a lost dog",
    "the first snow",
    "an old lighthouse",
    "two brothers",
    "a baker",
    "a night train",
    "the last tree",
    "a small robot",
)


def _code(length: int = 1400) -> list[str]:
    """Whole lines of source code."""
    sources = [inspect.getsource(__import__(name)) for name in SOURCES]
    return [source[: source.rfind("\n", 0, length)] for source in sources]


def _lists() -> list[str]:
    return ["\n".join(f"{i + 1}. {name}, room {(i * 37 + turn * 11) % 90 + 10}" for i, name in enumerate(NAMES)) for turn in range(8)]


def conversations(kind: str) -> list[str]:
    """Eight users' turns of one kind. The first two kinds are answered by repeating, the others not."""
    if kind == "code":
        return [f"Repeat this code exactly, and nothing else:\n\n```python\n{code}\n```" for code in _code()]
    if kind == "list":
        return [f"Copy this list exactly, and nothing else:\n\n{text}" for text in _lists()]
    if kind == "questions":
        return list(texts.QUESTIONS[:8])
    return [f"Write a story about {subject}." for subject in SUBJECTS]


KINDS = {"code": 0.0, "list": 0.0, "questions": 0.0, "stories": 0.8}
"""The temperature of each: an ordinary one for stories, so that they do not go round in circles as greedy ones of small models do."""


@dataclass
class Run:
    """All requests of a case, answered once."""

    answers: list[list[int]]
    seconds: float
    guessed: int
    accepted: int

    @property
    def speed(self) -> float:
        return sum(map(len, self.answers)) / self.seconds


class Bench:
    """One engine, with guesses or without."""

    def __init__(self, options: argparse.Namespace) -> None:
        self.llm = LLM(options.model, threads=options.threads, speculate=options.speculate, context=4096)
        self._speculation = self.llm.engine.scheduler.speculation
        self._tokens = options.tokens

    def run(self, kind: str, streams: int, guesses: bool) -> Run:
        self.llm.engine.scheduler.speculation = self._speculation if guesses else None
        prompts = [self.llm.template.render([{"role": "user", "content": content}]) for content in conversations(kind)]
        params = SamplingParams(temperature=KINDS[kind], max_tokens=self._tokens, seed=1)
        before, begin = self.llm.engine.stats(), time.perf_counter()
        answers: list[list[int]] = [[] for _ in prompts]
        for first in range(0, len(prompts), streams):
            for index in range(first, min(first + streams, len(prompts))):
                self.llm.engine.submit(Request(id=str(index), prompt=prompts[index], params=params))
            while self.llm.engine.busy:
                for output in self.llm.engine.step():
                    answers[int(output.id)] += output.tokens
        seconds, after = time.perf_counter() - begin, self.llm.engine.stats()
        guessed, accepted = (getattr(after, name) - getattr(before, name) for name in ("guessed_tokens", "accepted_tokens"))
        return Run(answers, seconds, guessed, accepted)


def case(bench: Bench, kind: str, streams: int, turns: int) -> dict:
    """A row: speeds, their ratio, how many guesses came true."""
    pairs = []
    for turn in range(turns + 1):  # the first one fills the prefix cache, and records the graphs
        order = (False, True) if turn % 2 else (True, False)
        runs = {guesses: bench.run(kind, streams, guesses) for guesses in order}
        if runs[True].answers != runs[False].answers:
            raise SystemExit(f"{kind} at {streams} streams: other tokens with guesses than without")
        pairs.append((runs[False], runs[True]))
    pairs = pairs[1:]
    ratios = [on.speed / off.speed for off, on in pairs]
    guessed, accepted, tokens = pairs[-1][1].guessed, pairs[-1][1].accepted, sum(map(len, pairs[-1][1].answers))
    return {
        "kind": kind,
        "streams": streams,
        "tokens": tokens,
        "off": round(statistics.median(off.speed for off, _ in pairs), 1),
        "on": round(statistics.median(on.speed for _, on in pairs), 1),
        "ratio": round(statistics.median(ratios), 3),
        "ratios": [round(ratio, 3) for ratio in ratios],
        "guessed": round(guessed / tokens, 2),
        "accepted": round(accepted / max(guessed, 1), 2),
    }


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", default="smollm2-135m-instruct")
    parser.add_argument("--speculate", type=int, default=8)
    parser.add_argument("--streams", default="1,8")
    parser.add_argument("--kinds", default=",".join(KINDS))
    parser.add_argument("--turns", type=int, default=5)
    parser.add_argument("--tokens", type=int, default=160, help="the longest answer")
    parser.add_argument("--threads", type=int, default=usable_cores())
    return parser.parse_args()


def main() -> None:
    options = arguments()
    bench = Bench(options)
    rows = []
    for streams in map(int, options.streams.split(",")):
        for kind in tqdm(options.kinds.split(","), desc=f"{streams} streams", leave=False):
            with Others() as others:
                row = case(bench, kind, streams, options.turns)
            rows.append(row | {"others": round(others.share, 3)})
            busy = "   OTHERS BUSY: measure again" if others.share > MUCH else ""
            tqdm.write(
                f"{kind:10} {streams:2} streams  {row['off']:7.1f} → {row['on']:7.1f} tokens/s  {row['ratio']:6.3f} ×   "
                f"{row['guessed']:.2f} guessed a token, {100 * row['accepted']:.0f} % accepted{busy}"
            )
    print(json.dumps({"speculate": options.speculate, "rows": rows}))


if __name__ == "__main__":
    main()
