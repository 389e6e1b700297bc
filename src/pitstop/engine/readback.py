"""What the host needs of a step's results: chosen on the device, copied without waiting, waited for once."""

from __future__ import annotations

import numpy as np
import torch

from pitstop.engine import sampler
from pitstop.ops.sample import draw, greedy
from pitstop.ops.sample.draws import Draw
from pitstop.ops.transfer import download, upload
from pitstop.types import Span, StepPlan

Rows = list[int] | np.ndarray
"""Of a span: the tokens chosen [wanted] where nothing else is asked for, else logits [wanted, vocab] fp32, or hidden states."""


def chosen_on_device(logits: torch.Tensor) -> bool:
    """Whether tokens are chosen where the logits are: on a GPU, whose rows then need not come to the host."""
    return logits.is_cuda


class Readback:
    """Of the logits [rows, vocab] and final hidden states [rows, width], fp32, that a plan's spans want, in its order."""

    def __init__(self, plan: StepPlan, logits: torch.Tensor, states: torch.Tensor) -> None:
        choose = chosen_on_device(logits)
        self._spans = [(span, choose and _plain(span)) for span in plan.spans]
        self.chosen: torch.Tensor | None = None
        """The tokens [rows] int64, on the device, where nothing but them is wanted."""
        self._ids: torch.Tensor | None = None
        self._done: torch.cuda.Event | None = None
        if choose:
            logits = self._choose(logits)
        self._logits, self._states = download(logits), download(states)
        if logits.is_cuda:
            self._done = torch.cuda.Event()
            self._done.record()

    def _choose(self, logits: torch.Tensor) -> torch.Tensor:
        """Choose the tokens of plain rows of logits [rows, vocab]. Returns the other rows."""
        plain = [plain for span, plain in self._spans if span.request.embed is None for _ in range(span.wanted)]
        draws = [draw for span, plain in self._spans if plain for draw in _draws(span)]
        if draws:
            ids = _chosen(_picked(logits, plain), draws)
            self._ids = download(ids)
            self.chosen = ids if all(plain) else None
        return _picked(logits, [not row for row in plain])

    def wait(self) -> dict[str, Rows]:
        """By request id, when the step is done."""
        if self._done is not None:
            self._done.synchronize()
        ids = self._ids.tolist() if self._ids is not None else []
        logits, states = self._logits.numpy(), self._states.numpy()
        found: dict[str, Rows] = {}
        for span, plain in self._spans:
            name, wanted = span.request.id, span.wanted
            if span.request.embed is not None:
                found[name], states = states[:wanted], states[wanted:]
            elif plain:
                found[name], ids = ids[:wanted], ids[wanted:]
            else:
                found[name], logits = logits[:wanted], logits[wanted:]
        return found


def _plain(span: Span) -> bool:
    """Whether all that is wanted of the span is the tokens that its logits give as they are."""
    request = span.request
    scored = request.score_from is not None or request.params.prompt_logprobs is not None or request.params.logprobs is not None
    return request.embed is None and not scored and sampler.plain(request.params, _position(span) - len(request.prompt))


def _position(span: Span) -> int:
    """Of the token that the first wanted row gives: how many come before it."""
    return span.start + span.count - span.wanted + 1


def _draws(span: Span) -> list[Draw]:
    """Of its wanted rows. Guessed or not, the token of a position is drawn in one way."""
    request, first = span.request, _position(span)
    return [sampler.drawn(request.params, request.choice, position) for position in range(first, first + span.wanted)]


def _picked(logits: torch.Tensor, rows: list[bool]) -> torch.Tensor:
    """Those rows."""
    if all(rows):
        return logits
    return logits[upload([number for number, row in enumerate(rows) if row], logits.device)]


def _chosen(logits: torch.Tensor, draws: list[Draw]) -> torch.Tensor:
    """ids [rows] int64 on the device, one for each draw."""
    if all(each.temperature == 0.0 for each in draws):
        return greedy(logits)
    return draw(logits, upload(draws, logits.device, torch.float64))
