"""From one row of logits to one token. Pure numpy, one row at a time, in fixed order: neighbours, batch size and threads cannot matter.

The draw is a function of (seed, choice, position) alone (Philox, a counter-based generator: Salmon et al., SC 2011), so any worker can
continue any request. Its arithmetic is that of ops/sample/draws.py, so a GPU can draw the same token.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Protocol

import numpy as np

from pitstop.ops import dispatch
from pitstop.ops.sample.draws import LIKELIEST, ONE, Draw
from pitstop.types import Logprob, SamplingParams

GREEDY_BELOW = 1e-5
"""Temperatures below this are greedy: dividing by them would overflow fp32 and change nothing but ties."""

_NUCLEUS_STEP = 256


class Form(Protocol):
    """What tokens may follow an answer so far, as `pitstop.guide.Guide` says it."""

    def allowed(self, tokens: Sequence[int]) -> np.ndarray:
        """bool [vocab], not all False."""

    def allows(self, tokens: Sequence[int], token: int) -> bool:
        """allowed(tokens)[token]; asked first where one token is likely, since it takes much less time."""


def greedy(params: SamplingParams) -> bool:
    """Whether nothing is drawn."""
    return params.temperature < GREEDY_BELOW


def plain(params: SamplingParams, generated: int) -> bool:
    """Whether the token after `generated` ones is chosen by the logits as they are, and so is every later one."""
    return not (params.grammar or params.logit_bias or _penalised(params)) and generated >= params.min_tokens


def drawn(params: SamplingParams, choice: int, position: int) -> Draw:
    """How the token after `position` known ones is chosen."""
    if greedy(params):
        return LIKELIEST
    least = math.ceil(params.min_p * ONE)
    return Draw(float(np.float32(params.temperature)), max(params.top_k, 0), params.top_p, least, uniform(params.seed, choice, position))


def sample(
    logits: np.ndarray,
    params: SamplingParams,
    known: list[int],
    prompt_length: int,
    choice: int,
    end_tokens: frozenset[int],
    form: Form | None = None,
) -> int:
    """The next token for `logits` [vocab] fp32 (not changed), after `known` tokens of which the first `prompt_length` are the prompt.

    form: what the answer must be; raises what it raises.
    """
    logits = _adjusted(logits, params, known, prompt_length, end_tokens)
    if form is None:
        return choose(logits, drawn(params, choice, len(known)))
    answer = known[prompt_length:]
    if greedy(params) and form.allows(answer, likeliest := int(logits.argmax())):
        return likeliest
    candidates = np.flatnonzero(form.allowed(answer))
    return int(candidates[choose(logits[candidates], drawn(params, choice, len(known)))])


def choose(logits: np.ndarray, draw: Draw) -> int:
    """The index of one of `logits` [candidates] fp32, in order of their tokens."""
    if draw.temperature == 0.0:
        return int(logits.argmax())
    candidates, weights = _filtered(_weights(logits, draw.temperature), draw)
    running = np.cumsum(weights)
    return int(candidates[np.searchsorted(running, int(draw.uniform * float(running[-1])), side="right")])


def uniform(seed: int, choice: int, position: int) -> float:
    """A number in [0, 1) with 53 random bits, fixed by its arguments."""
    key = np.array([seed % 2**64, choice], np.uint64)
    bits = np.random.Philox(key=key, counter=np.array([position, 0, 0, 0], np.uint64)).random_raw()
    return (int(bits) >> 11) * 2.0**-53


def logprob(logits: np.ndarray, token: int, top: int) -> Logprob:
    """Log-probability of `token` under softmax(logits), logits [vocab] fp32, and the `top` likeliest tokens (ties: lower id first)."""
    peak = logits.max()
    with np.errstate(over="ignore"):
        normaliser = float(peak) + float(np.log(np.exp(logits - peak).sum(dtype=np.float64)))
    likeliest = _largest(logits, top)
    return Logprob(token, float(logits[token]) - normaliser, [(int(i), float(logits[i]) - normaliser) for i in likeliest])


def _adjusted(logits: np.ndarray, params: SamplingParams, known: list[int], prompt_length: int, end_tokens: frozenset[int]) -> np.ndarray:
    """A copy of the logits after bias, penalties and min_tokens; the logits themselves when there is nothing to do."""
    generated = known[prompt_length:]
    barred = (end_tokens | set(params.stop_token_ids)) if len(generated) < params.min_tokens else ()
    if not (params.logit_bias or _penalised(params) or barred):
        return logits
    logits = logits.copy()
    for token, bias in params.logit_bias.items():
        logits[token] += bias
    if params.repetition_penalty != 1.0:  # Keskar et al. 2019, over prompt and answer
        seen = np.unique(known)
        logits[seen] = np.where(logits[seen] > 0, logits[seen] / params.repetition_penalty, logits[seen] * params.repetition_penalty)
    if generated and (params.presence_penalty or params.frequency_penalty):  # OpenAI: over the answer alone
        tokens, counts = np.unique(generated, return_counts=True)
        logits[tokens] -= (params.presence_penalty + params.frequency_penalty * counts).astype(np.float32)
    for token in barred:
        logits[token] = -np.inf
    return logits


def _penalised(params: SamplingParams) -> bool:
    return bool(params.repetition_penalty != 1.0 or params.presence_penalty or params.frequency_penalty)


def _weights(logits: np.ndarray, temperature: float) -> np.ndarray:
    """int64 [candidates], as ops/sample/draws.py has them."""
    most = logits.max()
    if not np.isfinite(most):
        return np.where((logits == most) | np.isnan(logits), ONE, 0)
    with np.errstate(over="ignore"):  # what overflows is infinitely unlikely, and that is right
        shares = logits - most
        shares /= np.float32(temperature)
    if dispatch.native is None:
        np.exp(shares, out=shares)
    else:
        dispatch.native.exp(shares.ctypes.data, shares.ctypes.data, len(shares))
    return (shares * np.float32(ONE)).astype(np.int64)


def _filtered(weights: np.ndarray, draw: Draw) -> tuple[np.ndarray, np.ndarray]:
    """Those that top_k, top_p and least leave, in order, and their weights."""
    candidates = np.arange(len(weights))
    if 0 < draw.top_k < len(weights):
        candidates = np.sort(_largest(weights, draw.top_k))
        weights = weights[candidates]
    if draw.top_p < 1.0:
        keep = np.sort(_nucleus(weights, draw.top_p))
        candidates, weights = candidates[keep], weights[keep]
    if draw.least > 0:
        keep = weights >= draw.least
        candidates, weights = candidates[keep], weights[keep]
    return candidates, weights


def _nucleus(weights: np.ndarray, top_p: float) -> np.ndarray:
    """Indices of the smallest set of likeliest candidates whose share reaches top_p; sorts only as many as it needs."""
    wanted = math.ceil(top_p * float(weights.sum()))
    size = _NUCLEUS_STEP
    while True:
        order = _largest(weights, size)
        running = np.cumsum(weights[order])
        if running[-1] >= wanted or len(order) == len(weights):
            return order[: int(np.searchsorted(running, wanted)) + 1]
        size *= 8


def _largest(values: np.ndarray, count: int) -> np.ndarray:
    """Indices of the `count` largest values, largest first, ties by lower index."""
    if count <= 0:
        return np.empty(0, np.intp)
    if count < len(values):
        threshold = np.partition(values, len(values) - count)[len(values) - count]
        above = np.flatnonzero(values > threshold)
        ties = np.flatnonzero(values == threshold)[: count - len(above)]
        indices = np.concatenate([above, ties])
    else:
        indices = np.arange(len(values))
    return indices[np.lexsort((indices, -values[indices]))]
