"""One measurement of Pitstop's engine, without the server: {"model", "threads", "options", "case", "prompts"} → {"speed"}.

With {"tokens"} instead of a case, the throughput of answers of so many tokens.
"""

from __future__ import annotations

import json
import sys

import measure

from pitstop import LLM, SamplingParams
from pitstop.types import Request


class Pitstop:
    """See measure.Stepper."""

    def __init__(self, model: str, threads: int, options: dict) -> None:
        self._engine = LLM(model, threads=threads, prefix_cache=False, **options).engine

    def submit(self, index: int, prompt: list[int], tokens: int) -> None:
        params = SamplingParams(temperature=0.0, max_tokens=tokens, ignore_eos=True)
        self._engine.submit(Request(id=str(index), prompt=prompt, params=params))

    def step(self) -> list[int]:
        return [int(output.id) for output in self._engine.step() for _ in output.tokens]


def main() -> None:
    request = json.load(sys.stdin)
    engine = Pitstop(request["model"], request["threads"], request["options"])
    if "case" in request:
        result = measure.speed(engine, measure.CASES[request["case"]], request["prompts"])
    else:
        result = measure.throughput(engine, request["prompts"], request["tokens"])
    print(json.dumps({"speed": result}))


if __name__ == "__main__":
    main()
