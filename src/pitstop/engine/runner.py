"""Runs a step plan: tokens through the model, logits through the sampler."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np
import torch

from pitstop.engine import sampler
from pitstop.engine.cuda_graphs import CudaGraphs
from pitstop.engine.graphs import DecodeGraphs, DecodeSteps, Runs
from pitstop.engine.guided import Guided
from pitstop.engine.readback import Readback, Rows
from pitstop.errors import InvalidRequest
from pitstop.kv.store import KVStore
from pitstop.kv.view import StepView
from pitstop.models.decoder import Decoder
from pitstop.models.lora.weights import Lora, Run
from pitstop.ops.transfer import upload
from pitstop.types import Logprob, Request, Sampled, Span, StepPlan, StepResult

NO_STATES = torch.empty(0, 0)
"""Of a step that embeds nothing."""


class Running(NamedTuple):
    """A step that was launched."""

    plan: StepPlan
    results: Readback
    begin: float
    recorded: int  # graphs, before it


class Runner:
    """One model, one KV store. `end_tokens` are what min_tokens bars; `guided` bars what a request's grammar does not allow.

    `adapters`: those that requests may name, by id. decode: what runs steps that decode, where something does.
    """

    def __init__(
        self,
        model: Decoder,
        store: KVStore,
        view: StepView,
        end_tokens: frozenset[int],
        guided: Guided | None = None,
        adapters: Mapping[str, Lora] | None = None,
        decode: DecodeSteps | None = None,
    ) -> None:
        self._model = model
        self.store = store
        self._view = view
        self._end_tokens = end_tokens
        self._guided = guided
        self._adapters = adapters if adapters is not None else {}
        self._decode = decode
        self.seconds: float | None = None
        """What the latest run took up to the logits; None when a graph was recorded, which takes longer."""

    @property
    def sizes(self) -> tuple[int, ...]:
        """Of steps that decode so many streams, to be recorded before they are needed."""
        return self._decode.sizes if self._decode is not None else ()

    def forget(self, lora: Lora) -> None:
        """An adapter is gone."""
        if self._decode is not None:
            self._decode.forget(lora)

    def run(self, plan: StepPlan) -> StepResult:
        """Run the plan's copies, then its spans as one batch, and sample."""
        return self.finish(self.launch(plan))

    def launch(self, plan: StepPlan, before: Running | None = None) -> Running:
        """Begin a run. On a GPU this returns while it goes on, after the one before that the plan follows."""
        begin, recorded = time.perf_counter(), self._recorded
        with torch.inference_mode():
            if before is not None:
                plan.chosen = before.results.chosen[upload(plan.follows, before.results.chosen.device)]
            return Running(plan, Readback(plan, *self.forward(plan)), begin, recorded)

    def finish(self, running: Running) -> StepResult:
        """Wait for a run, and sample."""
        found = running.results.wait()
        self.seconds = time.perf_counter() - running.begin if self._recorded == running.recorded else None
        result: StepResult = {}
        for span in running.plan.spans:
            rows = found[span.request.id]
            if span.request.embed is not None:
                result[span.request.id] = Sampled([], hidden=rows)
            elif span.wanted:
                result[span.request.id] = self._sample(span, rows)
        return result

    @torch.inference_mode()
    def logits(self, plan: StepPlan) -> np.ndarray:
        """Run the plan and give the logits that its spans want, [rows, vocab] fp32, in the plan's order."""
        return self.forward(plan)[0].cpu().numpy()

    def forward(self, plan: StepPlan) -> tuple[torch.Tensor, torch.Tensor]:
        """Run the plan: the logits [rows, vocab] and the final hidden states [rows, width], fp32, that its spans want."""
        self.store.copy_tails(plan.copies)
        runs = self._runs(plan.spans)
        if self._decode is not None and self._decode.takes(plan, runs):
            return self._decode(plan, runs), NO_STATES
        self._view.load(plan)
        hidden = self._model.hidden(self._model.embed(self._view.tokens), self._view, runs)
        chosen: list[int] = []
        pooled: list[int] = []
        end = 0
        for span in plan.spans:
            end += span.count
            (chosen if span.request.embed is None else pooled).extend(range(end - span.wanted, end))
        logits = self._model.head(hidden[upload(chosen, hidden.device)])
        return logits, self._model.embedding(hidden[upload(pooled, hidden.device)]) if pooled else NO_STATES

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

    def _sample(self, span: Span, logits: Rows) -> Sampled:
        """logits: of the span's wanted rows."""
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

    def _accept(self, span: Span, rows: Rows) -> Sampled:
        """The tokens that sampling one by one gives, each after all before it, as far as the guess has foreseen them, and one more.

        rows: 1 + guessed. A token is a function of its row and of what comes before it (engine.sampler), and a row's bits do not
        depend on what is computed beside it: so these are the tokens, to the bit, that come without guessing.
        """
        request, params, begin = span.request, span.request.params, len(span.request.prompt)
        known = [*span.known] if span.guess else span.known
        tokens: list[int] = []
        complete = False
        try:
            guide = self._guided.of(request) if params.grammar else None
            for row, guessed in zip(rows, [*span.guess, None], strict=True):
                token = self._next(row, request, known, guide)
                tokens.append(token)
                complete = guide is not None and token not in self._end_tokens and guide.complete([*known[begin:], token])
                if complete or token != guessed:
                    break
                known.append(token)
        except InvalidRequest as error:  # the door has seen that the grammar can be used; how far, only the answer shows
            return Sampled(tokens, error=str(error))
        return Sampled(tokens, complete=complete)

    def _next(self, row: np.ndarray | int, request: Request, known: list[int], guide: sampler.Form | None) -> int:
        """The token after `known`: the row itself where it was chosen on the device."""
        if isinstance(row, int):
            return row
        return sampler.sample(row, request.params, known, len(request.prompt), request.choice, self._end_tokens, guide)


def decode_steps(model: Decoder, view: StepView, most: int, device: str) -> DecodeSteps | None:
    """What runs steps of up to `most` decoded streams on the device, where something does."""
    if DecodeGraphs.usable(device):
        return DecodeGraphs(model, view)
    return CudaGraphs(model, view, most, device) if CudaGraphs.usable(device) else None
