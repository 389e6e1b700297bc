"""Runs a step plan: tokens through the model, logits through the sampler."""

from __future__ import annotations

import numpy as np
import torch

from pitstop.engine import sampler
from pitstop.engine.graphs import DecodeGraphs
from pitstop.engine.guided import Guided
from pitstop.errors import InvalidRequest
from pitstop.kv.store import KVStore
from pitstop.kv.view import StepView
from pitstop.models.decoder import Decoder
from pitstop.types import Logprob, Sampled, Span, StepPlan, StepResult


class Runner:
    """One model, one KV store. `end_tokens` are what min_tokens bars; `guided` bars what a request's grammar does not allow."""

    def __init__(
        self, model: Decoder, store: KVStore, view: StepView, device: str, end_tokens: frozenset[int], guided: Guided | None = None
    ) -> None:
        self._model = model
        self.store = store
        self._view = view
        self._device = device
        self._end_tokens = end_tokens
        self._guided = guided
        self._decode = DecodeGraphs(lambda x: model.forward(x, view)) if DecodeGraphs.usable(device) else None

    def run(self, plan: StepPlan) -> StepResult:
        """Run the plan's copies, then its spans as one batch, and sample."""
        logits = self.logits(plan)
        result: StepResult = {}
        first = 0
        for span in plan.spans:
            if span.wanted:
                result[span.request.id] = self._sample(span, logits[first : first + span.wanted])
            first += span.wanted
        return result

    @torch.inference_mode()
    def logits(self, plan: StepPlan) -> np.ndarray:
        """Run the plan and give the logits that its spans want, [rows, vocab] fp32, in the plan's order."""
        self.store.copy_tails(plan.copies)
        self._view.load(plan)
        tokens = torch.tensor([token for span in plan.spans for token in span.tokens], dtype=torch.int64, device=self._device)
        x = self._model.embed(tokens)
        if self._decode is not None and all(span.count == span.wanted == 1 for span in plan.spans):
            return self._decode(x).numpy()
        wanted: list[int] = []
        end = 0
        for span in plan.spans:
            end += span.count
            wanted += range(end - span.wanted, end)
        rows = torch.tensor(wanted, dtype=torch.int64, device=self._device)
        return self._model.forward(x, self._view, rows).cpu().numpy()

    def _sample(self, span: Span, logits: np.ndarray) -> Sampled:
        """logits [rows, vocab]: of the span's wanted rows."""
        request, params = span.request, span.request.params
        if request.score_from is not None:
            return Sampled(None, logits=logits.astype("<f4").tobytes())
        scores: list[Logprob] | None = None
        if params.prompt_logprobs is not None:
            end = span.start + span.count
            targets = request.prompt[end - span.wanted + 1 : end + 1]
            scores = [sampler.logprob(row, token, params.prompt_logprobs) for row, token in zip(logits, targets, strict=False)]
        if not span.samples:
            return Sampled(None, None, scores)
        known, begin = span.known, len(request.prompt)
        guide = allowed = None
        try:
            if params.grammar:
                guide = self._guided.of(request)
                allowed = guide.allowed(known[begin:])
            token = sampler.sample(logits[-1], params, known, begin, request.choice, self._end_tokens, allowed)
            complete = guide is not None and token not in self._end_tokens and guide.complete([*known[begin:], token])
        except InvalidRequest as error:  # the door has seen that the grammar can be used; how far, only the answer shows
            return Sampled(None, None, scores, error=str(error))
        chosen = None if params.logprobs is None else sampler.logprob(logits[-1], token, params.logprobs)
        return Sampled(token, chosen, scores, complete=complete)
