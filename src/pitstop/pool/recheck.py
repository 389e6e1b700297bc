"""An answer that a worker had begun which turned out to compute wrongly: computed again, and compared with what its client was told."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain
from typing import TypeVar

from pitstop.errors import WorkerDied
from pitstop.pool.stream import Delta

Told = TypeVar("Told", bound=Sequence)


class Recheck:
    """Takes the deltas of the second computation, from the first token on. `done`: all that was told has been confirmed.

    A delta's parts depend on the tokens so far and not on their grouping, so each kind of part is compared for itself.
    """

    def __init__(self, told: Sequence[Delta]) -> None:
        """told: the deltas that the client has got."""
        self._tokens = list(chain.from_iterable(delta.tokens for delta in told))
        self._text = "".join(delta.text for delta in told)
        self._scores = list(chain.from_iterable(delta.scores or () for delta in told))
        self._prompt_scores = next((delta.prompt_scores for delta in told if delta.prompt_scores is not None), None)

    @property
    def done(self) -> bool:
        return not (self._tokens or self._text or self._scores)

    def take(self, delta: Delta) -> Delta:
        """What the delta brings beyond what the client has. Raises WorkerDied when it contradicts that."""
        if delta.finish not in (None, "stop", "length"):
            return delta
        self._tokens, tokens = _beyond(self._tokens, delta.tokens)
        self._text, text = _beyond(self._text, delta.text)
        self._scores, scores = _beyond(self._scores, delta.scores or [])
        prompt_scores = delta.prompt_scores
        if self._prompt_scores is not None and prompt_scores is not None:
            if prompt_scores != self._prompt_scores:
                raise _contradiction()
            prompt_scores = None
        if delta.finish is not None and not self.done:
            raise _contradiction()
        return delta._replace(tokens=tokens, text=text, scores=None if delta.scores is None else scores, prompt_scores=prompt_scores)


def _beyond(told: Told, computed: Told) -> tuple[Told, Told]:
    """(what was told and is not computed yet, what is computed and was not told); one of them is empty."""
    common = min(len(told), len(computed))
    if told[:common] != computed[:common]:
        raise _contradiction()
    return told[common:], computed[common:]


def _contradiction() -> WorkerDied:
    return WorkerDied("The worker turned out to compute wrongly, and a part of this answer that was already sent is wrong; try again.")
