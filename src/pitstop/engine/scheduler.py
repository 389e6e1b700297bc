"""Which tokens to compute next. Pure Python, no torch: `plan` → (the step runs) → `settle`.

There are no phases. Every request has known tokens (prompt, then answer) and computed ones, and each step lets the computed catch up
with the known: prefill, chunked prefill, decode, and recomputation after a preemption are this one mechanism. So is the verification of
guessed tokens: for one step they stand after the known ones.
"""

from __future__ import annotations

import itertools
from bisect import insort
from collections.abc import Callable
from dataclasses import dataclass, field

from pitstop.engine.lookup import Lookup
from pitstop.engine.pooling import Pool
from pitstop.engine.protocol import score_rows
from pitstop.engine.speculation import Speculation
from pitstop.errors import ContextLengthExceeded, InvalidRequest
from pitstop.kv.cache import Holding, KVCache
from pitstop.types import SEGMENT, FinishReason, Logprob, Output, Request, Span, StepPlan, StepResult


@dataclass(eq=False, slots=True)
class Sequence:
    """A request in the engine. `holding` is None while it waits."""

    request: Request
    key: tuple[float, int]  # what goes first: priority, aged by arrival, then order of submission
    known: list[int]
    holding: Holding | None = None
    cached_tokens: int = 0
    admitted_once: bool = False
    prompt_logprobs: list[Logprob] = field(default_factory=list)
    logits: bytearray = field(default_factory=bytearray)
    lookup: Lookup | None = None  # from its first guess on
    pool: Pool | None = None  # of a request that embeds

    @property
    def prompt_length(self) -> int:
        return len(self.request.prompt)

    @property
    def pending(self) -> int:
        return len(self.known) - (self.holding.length if self.holding else 0)

    @property
    def in_prefill(self) -> bool:
        return self.holding is not None and self.holding.length < self.prompt_length

    @property
    def scores_prompt(self) -> bool:
        """Whether prompt log-probabilities are still to be computed."""
        if self.request.emitted:  # they came with the first token
            return False
        return self.request.params.prompt_logprobs is not None and len(self.prompt_logprobs) < self.prompt_length - 1

    @property
    def wanted_from(self) -> int:
        """The first position whose logits, or hidden states, are wanted: only what comes before it may come from the cache."""
        if self.scores_prompt or self.request.embed in ("mean", "cls"):
            return 0
        if self.request.embed == "last":
            return len(self.known) - 1
        if self.request.score_from is not None:
            return self.request.score_from
        return len(self.known) - (self.request.params.max_tokens > 0)


class Scheduler:
    """Continuous batching over a `KVCache`.

    prefill_chunk: prompt tokens computed per step, all requests together; decodes are on top, bounded by max_running. whole: a model
    that embeds only, whose prompts are computed in one step each; a prompt that is longer than a chunk has its step for itself.
    ageing: seconds of waiting that are worth one step of priority. Because everybody ages alike, the order never changes while waiting.
    """

    def __init__(
        self,
        cache: KVCache,
        *,
        context: int,
        vocab_size: int,
        end_tokens: frozenset[int] = frozenset(),
        prefill_chunk: int = 512,
        max_running: int = 32,
        ageing: float = 10.0,
        whole: bool = False,
    ) -> None:
        self.cache = cache
        self.context = context
        self.vocab_size = vocab_size
        self.end_tokens = end_tokens
        self.prefill_chunk = prefill_chunk
        self.max_running = max_running
        self.ageing = ageing
        self.whole = whole
        self.speculation: Speculation | None = None  # whose guesses steps may verify
        self.preemptions = 0
        self.cached_tokens = 0  # prompt tokens taken from the prefix index, all requests
        self.admitted: list[str] = []  # since the last take_changes
        self.preempted: list[str] = []
        self._sequences: dict[str, Sequence] = {}
        self._waiting: list[Sequence] = []  # both sorted by key
        self._running: list[Sequence] = []
        self._order = itertools.count()
        self._full = False  # nobody who waits can be let in before a request ends
        self.held: Callable[[Request], bool] = lambda request: False
        """Whether a request cannot run yet, for a reason that passes by itself. Others may overtake it meanwhile."""

    @property
    def stalled(self) -> bool:
        """Whether everybody here is held."""
        return bool(self._waiting) and not self._running and all(self.held(sequence.request) for sequence in self._waiting)

    @property
    def waiting(self) -> int:
        return len(self._waiting)

    @property
    def running(self) -> int:
        return len(self._running)

    @property
    def busy(self) -> bool:
        return bool(self._sequences)

    def submit(self, request: Request) -> None:
        """Queue a request. Raises InvalidRequest (ContextLengthExceeded) for one that can never run; its id must be new."""
        params = request.params
        if request.id in self._sequences:
            raise InvalidRequest(f"request id {request.id} is in use", "id")
        if not request.prompt:
            raise InvalidRequest("the prompt has no tokens", "prompt")
        for name, tokens in (("prompt", request.prompt), ("emitted", request.emitted)):
            if any(not 0 <= token < self.vocab_size for token in tokens):
                raise InvalidRequest(f"{name} token ids must lie in [0, {self.vocab_size})", name)
        if len(request.emitted) >= max(params.max_tokens, 1):
            raise InvalidRequest(f"{len(request.emitted)} of {params.max_tokens} tokens are there already", "emitted")
        params.check_vocabulary(self.vocab_size)
        if request.score_from is not None:
            self._check_score(request)
        if request.embed is not None and (params.max_tokens or request.score_from is not None):
            raise InvalidRequest("a request that embeds neither generates nor scores: max_tokens 0, no score_from", "embed")
        if self.whole and request.embed is None:
            raise InvalidRequest("this model embeds and does not generate", "embed")
        if len(request.prompt) + params.max_tokens > self.context:
            raise ContextLengthExceeded(len(request.prompt), params.max_tokens, self.context, "prompt")
        key = (request.priority * self.ageing + request.arrival, next(self._order))
        sequence = Sequence(request, key, request.prompt + request.emitted, pool=Pool(request.embed) if request.embed else None)
        self._sequences[request.id] = sequence
        insort(self._waiting, sequence, key=lambda s: s.key)
        self._full = False

    def cancel(self, request_id: str) -> Output | None:
        """End a request now and free what it holds; None when it is unknown or has ended."""
        sequence = self._sequences.get(request_id)
        return sequence and self._end(sequence, [], "cancelled")

    def fail_all(self, message: str, adapter: str | None = None) -> list[Output]:
        """End every request with an error, or those of an adapter."""
        sequences = [each for each in self._sequences.values() if adapter is None or each.request.adapter == adapter]
        outputs = [self._end(sequence, [], "error") for sequence in sequences]
        for output in outputs:
            output.message = message
        return outputs

    def expire(self, now: float) -> list[Output]:
        """End the requests whose deadline has passed, queued or running."""
        late = [s for s in self._sequences.values() if s.request.deadline is not None and s.request.deadline <= now]
        return [self._end(sequence, [], "timeout") for sequence in late]

    def plan(self) -> StepPlan:
        """The next step: running requests first, then admissions while budget, pages and tails last. Reserves what the step needs."""
        plan = StepPlan()
        budget = self.prefill_chunk
        preemptions = self.preemptions
        for sequence in list(self._running):
            count = sequence.pending if sequence.pending == 1 else min(sequence.pending, budget)
            if sequence.holding is None or count == 0:  # preempted for an earlier one, or no budget left
                continue
            while (pieces := self.cache.reserve(sequence.holding, count)) is None:
                victim = self._running[-1]
                self._preempt(victim)
                if victim is sequence:
                    break
            if pieces is not None:
                budget -= count if count > 1 else 0
                plan.spans.append(self._span(sequence, count))
        self._full = self.preemptions == preemptions and self._admit(plan, budget)
        if self.speculation is not None and plan.spans and plan.decodes:
            self._guess(plan, self.speculation)
        plan.copies, self.cache.copies = self.cache.copies, []
        return plan

    def follow(self, plan: StepPlan) -> StepPlan | None:
        """The step after `plan`, which still runs, as far as that can be told without its tokens: a row for each of its rows that samples
        and does not end by its length. None where more is to be decided, or slots are short: `plan` it when this one is settled.

        An answer that turns out to have ended by a token leaves a row that nobody wants: see `drop_ended`.
        """
        if self.speculation is not None or (self._waiting and not self._full) or not plan.decodes:
            return None
        following = StepPlan()
        for row, span in enumerate(plan.spans):
            generated = span.start + 2 - len(span.request.prompt)  # with the token that is being chosen
            if not self._lives(span) or generated >= span.request.params.max_tokens:
                continue
            sequence = self._sequences[span.request.id]
            if self.cache.reserve(sequence.holding, 1) is None:
                for reserved in following.spans:
                    self.cache.retract(self._sequences[reserved.request.id].holding, reserved.pieces)
                return None
            following.spans.append(self._span(sequence, 1, span.start + 1))
            following.follows.append(row)
        return following if following.spans else None

    def drop_ended(self, plan: StepPlan) -> None:
        """Take those out of a plan that has run whose requests have ended since it was made."""
        plan.spans = [span for span in plan.spans if self._lives(span)]

    def settle(self, plan: StepPlan, result: StepResult) -> list[Output]:
        """Book what the step computed; the outputs, in the plan's order."""
        outputs = []
        for span in plan.spans:
            sequence = self._sequences[span.request.id]
            sampled = result.get(span.request.id)
            tokens = sampled.tokens if sampled is not None else []
            sequence.known += tokens
            if span.guess:
                self.cache.resize(sequence.holding, max(len(tokens), 1) - span.count)
            self.cache.commit(sequence.holding, sequence.known, len(span.pieces))
            if sampled is not None:
                sequence.prompt_logprobs += sampled.prompt_logprobs or []
                sequence.logits += sampled.logits
                if sampled.hidden is not None and len(sampled.hidden):
                    sequence.pool.add(sampled.hidden)
            if sequence.pending and not tokens:
                continue
            complete, error = (sampled.complete, sampled.error) if sampled is not None else (False, "")
            finish = "error" if error else "stop" if complete else self._finish(sequence)
            output = self._end(sequence, tokens, finish) if finish else self._output(sequence, tokens, None)
            output.logprobs = sampled.logprobs if tokens else None
            output.message, output.refused, output.complete = error, bool(error), complete
            outputs.append(output)
        return outputs

    def outlook(self) -> list[tuple[int, int]]:
        """(start, count) of the spans that the next plan will have at most, unless something new is submitted."""
        spans = []
        budget = self.prefill_chunk
        decodes = all(sequence.pending == 1 for sequence in self._running)
        guessed = self.speculation.most if self.speculation is not None and decodes else 0
        for sequence in self._running:
            pending = sequence.pending
            count = min(pending, max(budget, 1))
            budget -= count if pending > 1 else 0
            spans.append((sequence.holding.length, count + guessed))
        if self._waiting and budget > 0 and len(self._running) < self.max_running:
            lengths = [len(sequence.known) for sequence in self._waiting]  # the prefix index may have any of it but the last rows
            budget = max(budget, max(lengths)) if self.whole else budget
            spans.append((max(lengths), min(sum(lengths), budget)))
        return spans

    def take_changes(self) -> tuple[list[str], list[str]]:
        """Ids admitted and preempted since the last call."""
        changes = self.admitted, self.preempted
        self.admitted, self.preempted = [], []
        return changes

    def _check_score(self, request: Request) -> None:
        """Raise InvalidRequest for a score that is too long for a message, or that would generate."""
        rows, most = len(request.prompt) - request.score_from, score_rows(self.vocab_size)
        if not 0 < rows <= min(most, len(request.prompt)) or request.params.max_tokens:
            raise InvalidRequest(f"a score has 1 to {most} rows of its prompt and max_tokens 0", "score_from")

    def _lives(self, span: Span) -> bool:
        """Whether the span's request is here still."""
        sequence = self._sequences.get(span.request.id)
        return sequence is not None and sequence.known is span.known

    def _admit(self, plan: StepPlan, budget: int) -> bool:
        """Let in who waits. Returns whether all others must wait until a request ends."""
        passed = False  # over one that waits for something else
        leading = {s.request.group for s in self._running if s.in_prefill}
        for sequence in list(self._waiting):
            if len(self._running) >= self.max_running:
                return not passed
            if budget <= 0:
                return False
            request = sequence.request
            # Of a group, the first choice computes the common prompt, the others then share it.
            if self.held(request) or (request.group and request.group in leading):
                passed = True
                continue
            limit = 0 if request.probe else sequence.wanted_from
            if self.whole and plan.spans and sequence.pending > budget:
                return False
            listed, adapter = not request.probe, request.adapter
            holding = self.cache.open(sequence.known, sequence.prompt_length, limit=limit, listed=listed, adapter=adapter)
            if holding is None:
                return not passed
            sequence.holding = holding
            count = sequence.pending if self.whole else min(sequence.pending, budget)
            if not self.cache.fits(holding, len(sequence.known)) or self.cache.reserve(holding, count) is None:
                self.cache.abandon(holding)
                sequence.holding = None
                return not passed  # who comes later must not overtake
            self._waiting.remove(sequence)
            insort(self._running, sequence, key=lambda s: s.key)
            self.admitted.append(request.id)
            if not sequence.admitted_once:
                sequence.admitted_once, sequence.cached_tokens = True, min(holding.cached, sequence.prompt_length)
                self.cached_tokens += sequence.cached_tokens
            if sequence.in_prefill:
                leading.add(request.group)
            budget -= count
            plan.spans.append(self._span(sequence, count))
        return False

    def _guess(self, plan: StepPlan, speculation: Speculation) -> None:
        """Let a step of decodes compute guessed tokens, too: as many as pay."""
        found = [self._foreseen(span, speculation.most) for span in plan.spans]
        counts = speculation.share([chances for _, chances in found])
        for span, (tokens, _), count in zip(plan.spans, found, counts, strict=True):
            if count:
                span.guess = tokens[:count]
                span.pieces = self.cache.resize(self._sequences[span.request.id].holding, count)
                span.count += count
                span.wanted += count

    def _foreseen(self, span: Span, most: int) -> tuple[list[int], list[float]]:
        """Tokens that may come, and the chances that each and all before it do. None of them may end the answer, or fill the segment."""
        params, sequence = span.request.params, self._sequences[span.request.id]
        left = params.max_tokens - (len(sequence.known) - sequence.prompt_length)
        most = min(most, left - 1, SEGMENT - 2 - span.start % SEGMENT)
        if most <= 0 or not span.samples:
            return [], []
        if sequence.lookup is None:
            sequence.lookup = Lookup(sequence.known, sequence.prompt_length)
        tokens = sequence.lookup.guess(most)
        ends = [at for at, token in enumerate(tokens) if token in self.end_tokens or token in params.stop_token_ids]
        tokens = tokens[: ends[0]] if ends else tokens
        return tokens, sequence.lookup.chances(len(tokens))

    def _span(self, sequence: Sequence, count: int, start: int | None = None) -> Span:
        """The span of the tokens just reserved. start: where they begin, if not where the computed ones end."""
        holding = sequence.holding
        start = holding.length if start is None else start
        pages = holding.pages + [page for piece in holding.pending for page in piece.pages]
        pieces = [piece for piece in holding.pending if piece.start >= start]
        wanted = min(max(start + count - sequence.wanted_from, 0), count)
        return Span(sequence.request, sequence.known, start, count, pages, pieces, wanted)

    def _preempt(self, sequence: Sequence) -> None:
        """Take everything from a running request and queue it again; it will catch up by recomputation (or from the prefix index)."""
        self.cache.close(sequence.holding, sequence.known)
        sequence.holding = None
        if sequence.scores_prompt:
            sequence.prompt_logprobs.clear()
        sequence.logits.clear()
        if sequence.pool is not None:
            sequence.pool.clear()
        self._running.remove(sequence)
        insort(self._waiting, sequence, key=lambda s: s.key)
        self.preemptions += 1
        self.preempted.append(sequence.request.id)

    def _finish(self, sequence: Sequence) -> FinishReason | None:
        params, generated = sequence.request.params, len(sequence.known) - sequence.prompt_length
        if sequence.pool is not None:
            return "stop"
        if generated and generated >= params.min_tokens:
            last = sequence.known[-1]
            if last in params.stop_token_ids or (last in self.end_tokens and not params.ignore_eos):
                return "stop"
        return "length" if generated >= params.max_tokens else None

    def _output(self, sequence: Sequence, tokens: list[int], finish: FinishReason | None) -> Output:
        first = len(sequence.known) - sequence.prompt_length <= len(tokens) and not sequence.request.emitted
        scores = sequence.prompt_logprobs if first and sequence.request.params.prompt_logprobs is not None else None
        logits = bytes(sequence.logits) if finish == "length" else b""
        vector = sequence.pool.vector() if sequence.pool is not None and finish == "stop" else b""
        return Output(sequence.request.id, tokens, None, finish, sequence.cached_tokens, scores, logits=logits, vector=vector)

    def _end(self, sequence: Sequence, tokens: list[int], finish: FinishReason) -> Output:
        """Free what a request holds and forget it."""
        if sequence.holding is not None:
            self.cache.close(sequence.holding, sequence.known)
            sequence.holding = None
            self._running.remove(sequence)
        else:
            self._waiting.remove(sequence)
        del self._sequences[sequence.request.id]
        self._full = False
        return self._output(sequence, tokens, finish)
