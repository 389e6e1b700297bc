"""Runs a step plan: tokens through the model, logits through the sampler."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence

import numpy as np
import torch

from pitstop.engine import sampler
from pitstop.engine.graphs import DecodeGraphs, Runs
from pitstop.engine.guided import Guided
from pitstop.errors import InvalidRequest
from pitstop.kv.store import KVStore
from pitstop.kv.view import StepView
from pitstop.models.decoder import Decoder
from pitstop.models.lora.weights import Lora, Run
from pitstop.types import Logprob, Sampled, Span, StepPlan, StepResult


class Runner:
    """One model, one KV store. `end_tokens` are what min_tokens bars; `guided` bars what a request's grammar does not allow.

    `adapters`: those that requests may name, by id.
    """

    def __init__(
        self,
        model: Decoder,
        store: KVStore,
        view: StepView,
        device: str,
        end_tokens: frozenset[int],
        guided: Guided | None = None,
        adapters: Mapping[str, Lora] | None = None,
    ) -> None:
        self._model = model
        self.store = store
        self._view = view
        self._device = device
        self._end_tokens = end_tokens
        self._guided = guided
        self.states = np.empty((0, 0), np.float32)
        """Final hidden states that the embedding spans of the plan run last want, [rows, width] fp32, in the plan's order."""
        self._adapters = adapters if adapters is not None else {}
        self._decode = DecodeGraphs(lambda x, runs: model.forward(x, view, runs=runs)) if DecodeGraphs.usable(device) else None
        self.seconds: float | None = None
        """What the latest run took up to the logits; None when a graph was recorded, which takes longer."""

    def forget(self, lora: Lora) -> None:
        """An adapter is gone."""
        if self._decode is not None:
            self._decode.forget(lora)

    def run(self, plan: StepPlan) -> StepResult:
        """Run the plan's copies, then its spans as one batch, and sample."""
        begin, recorded = time.perf_counter(), self._recorded
        logits = self.logits(plan)
        self.seconds = time.perf_counter() - begin if self._recorded == recorded else None
        states = self.states
        result: StepResult = {}
        for span in plan.spans:
            if span.request.embed is not None:
                rows, states = states[: span.wanted], states[span.wanted :]
                result[span.request.id] = Sampled([], hidden=rows)
            elif span.wanted:
                rows, logits = logits[: span.wanted], logits[span.wanted :]
                result[span.request.id] = self._sample(span, rows)
        return result

    @torch.inference_mode()
    def logits(self, plan: StepPlan) -> np.ndarray:
        """Run the plan and give the logits that its spans want, [rows, vocab] fp32, in the plan's order; `states` are the others'."""
        self.store.copy_tails(plan.copies)
        self._view.load(plan)
        tokens = torch.tensor([token for span in plan.spans for token in span.tokens], dtype=torch.int64, device=self._device)
        x, runs = self._model.embed(tokens), self._runs(plan.spans)
        if self._decode is not None and plan.decodes:
            return self._decode(x, len(plan.spans), runs).numpy()
        chosen: list[int] = []
        pooled: list[int] = []
        end = 0
        for span in plan.spans:
            end += span.count
            (chosen if span.request.embed is None else pooled).extend(range(end - span.wanted, end))
        hidden = self._model.hidden(x, self._view, runs)
        if pooled:
            self.states = self._model.embedding(hidden[torch.tensor(pooled, dtype=torch.int64, device=self._device)]).cpu().numpy()
        return self._model.head(hidden[torch.tensor(chosen, dtype=torch.int64, device=self._device)]).cpu().numpy()

    def _runs(self, spans: Sequence[Span]) -> Runs:
        """The rows that adapters change, neighbours of one adapter together."""
        runs: list[Run] = []
        row = 0
        for span in spans:
            if span.request.adapter:
                lora, first, count = self._adapters[span.request.adapter], row, span.count
                if runs and runs[-1].lora is lora and runs[-1].first + runs[-1].count == row:
                    _, first, before = runs.pop()
                    count += before
                runs.append(Run(lora, first, count))
            row += span.count
        return tuple(runs)

    @property
    def _recorded(self) -> int:
        return self._decode.recorded if self._decode is not None else 0

    def _sample(self, span: Span, logits: np.ndarray) -> Sampled:
        """logits [rows, vocab]: of the span's wanted rows."""
        request, params = span.request, span.request.params
        if request.score_from is not None:
            return Sampled([], logits=logits.astype("<f4").tobytes())
        scores: list[Logprob] | None = None
        if params.prompt_logprobs is not None:
            end = span.start + span.count
            targets = request.prompt[end - span.wanted + 1 : end + 1]
            scores = [sampler.logprob(row, token, params.prompt_logprobs) for row, token in zip(logits, targets, strict=False)]
        if not span.samples:
            return Sampled([], None, scores)
        rows = logits[len(logits) - 1 - len(span.guess) :]
        sampled = self._accept(span, rows)
        if params.logprobs is None:
            return sampled._replace(prompt_logprobs=scores)
        chosen = [sampler.logprob(row, token, params.logprobs) for row, token in zip(rows, sampled.tokens, strict=False)]
        return sampled._replace(logprobs=chosen, prompt_logprobs=scores)

    def _accept(self, span: Span, rows: np.ndarray) -> Sampled:
        """The tokens that sampling one by one gives, each after all before it, as far as the guess has foreseen them, and one more.

        rows [1 + guessed, vocab]. A token is a function of its row and of what comes before it (engine.sampler), and a row's bits do not
        depend on what is computed beside it: so these are the tokens, to the bit, that come without guessing.
        """
        request, params, begin = span.request, span.request.params, len(span.request.prompt)
        known = [*span.known] if span.guess else span.known
        tokens: list[int] = []
        complete = False
        try:
            guide = self._guided.of(request) if params.grammar else None
            for row, guessed in zip(rows, [*span.guess, None], strict=True):
                token = sampler.sample(row, params, known, begin, request.choice, self._end_tokens, guide)
                tokens.append(token)
                complete = guide is not None and token not in self._end_tokens and guide.complete([*known[begin:], token])
                if complete or token != guessed:
                    break
                known.append(token)
        except InvalidRequest as error:  # the door has seen that the grammar can be used; how far, only the answer shows
            return Sampled(tokens, error=str(error))
        return Sampled(tokens, complete=complete)
