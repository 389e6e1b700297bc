"""Runs the last plans of a dead worker again: `python -m pitstop.engine.replay FILE`, in a process of its own, as it may die too."""

from __future__ import annotations

import random
import sys
from pathlib import Path

from pitstop.engine import crash
from pitstop.engine.core import Engine
from pitstop.engine.crash import Crash
from pitstop.engine.lookup import Lookup
from pitstop.engine.recorder import RecordedPlan, RecordedSpan
from pitstop.errors import PitstopError
from pitstop.kv.cache import Holding
from pitstop.models.weights.source import open_model
from pitstop.types import Request, SamplingParams, Span, StepPlan


class Replay:
    """The requests of a crash in a fresh engine, brought to where the recorded plans found them, then run plan by plan."""

    def __init__(self, record: Crash, engine: Engine) -> None:
        self._engine = engine
        self._requests: dict[str, Request] = {}
        self._known: dict[str, list[int]] = {}
        self._holdings: dict[str, Holding] = {}
        self.invented: set[str] = set()
        """Ids whose tokens were not recorded: random ones of the same number stand for them."""
        self.came: dict[str, list[int]] = {}
        """Tokens that the replayed plans chose, by id."""
        self.differ: set[str] = set()
        """Ids for which another token came than then."""
        longest: dict[str, int] = {}
        for plan in record.plans:
            for span in plan.spans:
                longest[span.id] = max(longest.get(span.id, 0), span.known)
        for name, known in longest.items():
            self._prepare(name, known, record.requests.get(name))

    def _prepare(self, name: str, known: int, recorded: crash.RecordedRequest | None) -> None:
        draw = random.Random(name)
        vocabulary = range(self._engine.vocab_size)
        params, choice, prompt, emitted, adapter = SamplingParams(max_tokens=1 << 20), 0, None, None, ""
        lengths = known, 0
        if recorded is not None:
            params, choice, prompt, emitted = recorded.params, recorded.choice, recorded.prompt, recorded.emitted
            adapter = recorded.adapter
            lengths = recorded.prompt_tokens, recorded.emitted_tokens
        if prompt is None or emitted is None:
            self.invented.add(name)
            prompt, emitted = (draw.choices(vocabulary, k=length) for length in lengths)
        self._requests[name] = Request(id=name, prompt=prompt, params=params, choice=choice, adapter=adapter)
        self._known[name] = prompt + emitted

    def run(self, plan: RecordedPlan, later: set[str]) -> None:
        """later: ids that this plan or a later one runs; what others hold is given back."""
        for name in set(self._holdings) - later:
            self._engine._cache.close(self._holdings.pop(name), self._known[name])
        for span in plan.spans:
            self._catch_up(span)
        result = self._engine._runner.run(StepPlan([self._span(span) for span in plan.spans], self._copies()))
        for span in plan.spans:
            tokens = result[span.id].tokens if span.id in result else []
            if span.guessed:
                self._engine._cache.resize(self._holdings[span.id], len(tokens) - span.count)
            self._commit(span)
            if tokens:
                self._came(span, tokens)

    def _came(self, span: RecordedSpan, tokens: list[int]) -> None:
        known = self._known[span.id]
        self.came.setdefault(span.id, []).extend(tokens)
        for position, token in enumerate(tokens, span.known):
            if position == len(known):  # nobody heard of it any more
                known.append(token)
            elif known[position] != token:
                self.differ.add(span.id)

    def _catch_up(self, span: RecordedSpan) -> None:
        """Compute what came before the span, the request alone."""
        known = self._known[span.id]
        missing = span.known - len(known)
        if missing > 0:  # the message with them was lost, and the plan that chose them is not recorded
            known += random.Random(span.id).choices(range(self._engine.vocab_size), k=missing)
            self.invented.add(span.id)
        holding = self._holdings.get(span.id)
        if holding is not None and holding.length > span.start:  # it was preempted
            self._engine._cache.close(holding, self._known[span.id])
            holding = None
        if holding is None:
            request = self._requests[span.id]
            holding = self._engine._cache.open(self._known[span.id], len(request.prompt), limit=0, listed=False)
            self._holdings[span.id] = holding
        while holding.length < span.start:
            count = min(span.start - holding.length, self._engine.config.prefill_chunk)
            part = RecordedSpan(span.id, holding.length, count, span.known)
            self._engine._runner.run(StepPlan([self._span(part)], self._copies()))
            self._commit(part)

    def _span(self, span: RecordedSpan) -> Span:
        holding, request = self._holdings[span.id], self._requests[span.id]
        known, guessed = self._known[span.id][: span.known], span.guessed
        pieces = self._engine._cache.reserve(holding, span.count - guessed)
        if pieces is None:
            raise PitstopError("the KV cache is too small to hold what the record holds")
        if guessed:
            pieces = self._engine._cache.resize(holding, guessed)
        pages = holding.pages + [page for piece in pieces for page in piece.pages]
        samples = span.start + span.count >= span.known and request.params.max_tokens > 0
        scores = request.params.prompt_logprobs is not None and span.start < len(request.prompt)
        wanted = span.count if scores else samples * (1 + guessed)
        return Span(request, known, span.start, span.count, pages, pieces, wanted, self._guess(request, known, guessed))

    def _guess(self, request: Request, known: list[int], count: int) -> list[int]:
        """What was guessed then, a function of the known tokens; random ones where those are."""
        found = Lookup(known, len(request.prompt)).guess(count) if count else []
        return found + random.Random(request.id).choices(range(self._engine.vocab_size), k=count - len(found))

    def _commit(self, span: RecordedSpan) -> None:
        self._engine._cache.commit(self._holdings[span.id], self._known[span.id])

    def _copies(self) -> list[tuple[int, int]]:
        copies, self._engine._cache.copies = self._engine._cache.copies, []
        return copies


def main(path: Path) -> None:
    """Print what runs before it runs, so that the last line names what did not end."""
    record = crash.load(path)
    print(f"A worker that {record.worker} at {record.time}, pitstop {record.version}", flush=True)
    if not record.plans:
        raise PitstopError(f"{path} has no plans: the worker died before it ran any")
    engine = Engine(record.engine, open_model(record.engine.model))
    if errors := [state.error for state in engine.adapter_states if state.error]:
        raise PitstopError(f"an adapter of then is not there any more: {errors[0]}")
    replay = Replay(record, engine)
    if replay.invented:
        print(f"{len(replay.invented)} of its requests were recorded without tokens: random ones of the same number stand for them")
        print("(pitstop serve --record-prompts keeps them)")
    for index, plan in enumerate(record.plans):
        rows = sum(span.count for span in plan.spans)
        end = "" if plan.done else ", in which it died"
        print(f"plan {plan.number}: {rows} tokens of {len(plan.spans)} requests{end}", flush=True)
        replay.run(plan, {span.id for rest in record.plans[index:] for span in rest.spans})
    for name, tokens in replay.came.items():
        note = " (random prompt)" if name in replay.invented else " (others than then!)" if name in replay.differ else ""
        print(f"{name}: tokens {' '.join(map(str, tokens))}{note}")


if __name__ == "__main__":
    try:
        main(Path(sys.argv[1]))
    except PitstopError as error:
        print(f"pitstop: {error}", file=sys.stderr)
        sys.exit(2)
