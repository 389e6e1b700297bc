"""From the engine's step messages to deltas: detokenising, stop strings and log-probabilities. Runs on a worker's reader thread."""

from __future__ import annotations

from pitstop.engine.protocol import Step
from pitstop.pool.stream import Delta, TokenScore
from pitstop.text.stream import TextStream
from pitstop.text.tokenizer import Tokenizer
from pitstop.types import Logprob, Output


class Decoding:
    """The text state of every choice that one worker incarnation runs. The states themselves are the journal's: they outlive a worker.

    `open` and `close` may be called from the event loop while `step` runs: each is a single dictionary operation.
    """

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self._texts: dict[str, TextStream] = {}

    def open(self, request_id: str, text: TextStream) -> None:
        self._texts[request_id] = text

    def close(self, request_id: str) -> None:
        """Ignore what still comes for this id."""
        self._texts.pop(request_id, None)

    def step(self, step: Step) -> tuple[list[Delta], list[str]]:
        """The deltas of one step, and the ids whose stop string matched: the worker must be told to cancel them."""
        deltas, stopped = [], []
        for output in step.outputs:
            text = self._texts.get(output.id)
            if text is None:
                continue
            delta = self._delta(output, text)
            if delta.finish is not None:
                self.close(output.id)
                if output.finish is None:
                    stopped.append(output.id)
            deltas.append(delta)
        return deltas, stopped

    def _delta(self, output: Output, text: TextStream) -> Delta:
        words, tokens, shown, finish, stop = text.settle(output.tokens, output.finish, output.complete)
        scores = [self._score(score) for score in output.logprobs[:shown]] if output.logprobs is not None else None
        prompt_scores = [self._score(score) for score in output.prompt_logprobs] if output.prompt_logprobs is not None else None
        rest = output.message, output.logits, stop, output.vector, output.refused
        return Delta(output.id, tokens, words, scores, finish, output.cached_tokens, prompt_scores, *rest)

    def _score(self, score: Logprob) -> TokenScore:
        top = tuple(spell(self._tokenizer, token, logprob) for token, logprob in score.top)
        return spell(self._tokenizer, score.token, score.logprob, top)


def spell(tokenizer: Tokenizer, token: int, logprob: float, top: tuple[TokenScore, ...] = ()) -> TokenScore:
    """A token with its text and bytes."""
    data = tokenizer.token_bytes(token)
    try:
        text = data.decode()
    except UnicodeDecodeError:
        text = "bytes:" + "".join(f"\\x{byte:02x}" for byte in data)
    return TokenScore(text, data, logprob, top)
