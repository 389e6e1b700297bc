"""What the host needs of a step's results: chosen on the device, copied without waiting, waited for once."""

from __future__ import annotations

import numpy as np
import torch

from pitstop.engine import sampler
from pitstop.ops.sample import greedy
from pitstop.ops.transfer import download, upload
from pitstop.types import Span, StepPlan

Rows = list[int] | np.ndarray
"""Of a span: the likeliest tokens [wanted] where nothing else is asked for, else logits [wanted, vocab] fp32, or hidden states."""


def chosen_on_device(logits: torch.Tensor) -> bool:
    """Whether the likeliest tokens are chosen where the logits are: on a GPU, whose rows then need not come to the host."""
    return logits.is_cuda


class Readback:
    """Of the logits [rows, vocab] and final hidden states [rows, width], fp32, that a plan's spans want, in its order."""

    def __init__(self, plan: StepPlan, logits: torch.Tensor, states: torch.Tensor) -> None:
        choose = chosen_on_device(logits)
        self._spans = [(span, choose and _likeliest(span)) for span in plan.spans]
        rows = [likeliest for span, likeliest in self._spans if span.request.embed is None for _ in range(span.wanted)]
        chosen = greedy(logits) if any(rows) else None
        self.chosen = chosen if all(rows) else None
        """The likeliest tokens [rows] int64, on the device, where nothing but them is wanted."""
        self._ids = download(chosen) if chosen is not None else None
        if chosen is not None:
            logits = logits[upload([row for row, likeliest in enumerate(rows) if not likeliest], logits.device)]
        self._logits, self._states = download(logits), download(states)
        self._done = torch.cuda.Event() if logits.is_cuda else None
        if self._done is not None:
            self._done.record()

    def wait(self) -> dict[str, Rows]:
        """By request id, when the step is done."""
        if self._done is not None:
            self._done.synchronize()
        ids = self._ids.tolist() if self._ids is not None else []
        logits, states = self._logits.numpy(), self._states.numpy()
        found: dict[str, Rows] = {}
        for span, likeliest in self._spans:
            name, wanted = span.request.id, span.wanted
            if span.request.embed is not None:
                found[name], states = states[:wanted], states[wanted:]
                continue
            if likeliest:
                found[name] = ids[:wanted]
            else:
                found[name], logits = logits[:wanted], logits[wanted:]
            ids = ids[wanted:]
        return found


def _likeliest(span: Span) -> bool:
    """Whether all that is wanted of the span is its likeliest tokens."""
    request = span.request
    scored = request.score_from is not None or request.params.prompt_logprobs is not None or request.params.logprobs is not None
    generated = span.start + span.count - len(span.guess) - len(request.prompt)
    return not scored and sampler.likeliest(request.params, generated)
