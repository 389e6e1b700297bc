"""Choices from logits: those of the sampler on the host, ties and what is no number included."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from pitstop.engine import sampler
from pitstop.ops import dispatch, sample
from pitstop.ops.sample import ref
from pitstop.ops.sample.draws import ID_BITS, LIKELIEST, ONE, Draw
from pitstop.types import SamplingParams

VOCABS = [1, 7, 100, 5000]


def host(logits: torch.Tensor, draws: torch.Tensor) -> list[int]:
    """What the host's sampler chooses."""
    parts = [(t, int(top_k), top_p, int(least), u) for t, top_k, top_p, least, u in draws.tolist()]
    return [sampler.choose(row.numpy(), Draw(*part)) for row, part in zip(logits, parts, strict=True)]


@pytest.mark.parametrize("vocab", VOCABS)
def test_greedy_is_the_host_s_choice(vocab):
    logits = ref.make_inputs(vocab, 12, vocab)
    params = SamplingParams(temperature=0.0)
    chosen = [sampler.sample(row.numpy(), params, [1], 1, 0, frozenset()) for row in logits]
    ids = sample.greedy(logits)
    assert ids.dtype is torch.int64
    assert ids.tolist() == chosen == logits.numpy().argmax(1).tolist()
    likeliest = torch.tensor([LIKELIEST] * 12, dtype=torch.float64)
    assert sample.draw(logits, likeliest).tolist() == chosen


@pytest.mark.parametrize("vocab", VOCABS)
def test_draws_are_the_host_s(vocab):
    """Two ways to write one arithmetic: by sorting every row, and by sorting as little as there is to sort."""
    logits, draws = ref.make_inputs(vocab, 200, vocab), ref.make_draws(vocab, 200)
    logits[100:] = torch.randn(100, vocab, generator=torch.Generator().manual_seed(1)) * 3
    for rows in (logits, logits.flip(0)):
        ids = sample.draw(rows, draws)
        assert ids.dtype is torch.int64
        assert ids.tolist() == host(rows, draws)


@pytest.mark.parametrize("vocab", VOCABS)
def test_the_host_without_native_kernels_draws_as_the_reference_nearly_always(vocab, monkeypatch):
    logits, draws = ref.make_inputs(vocab, 200, vocab), ref.make_draws(vocab, 200)
    with dispatch.use("ref"):
        ids = sample.draw(logits, draws)
    monkeypatch.setattr(dispatch, "native", None)
    different = ids != torch.tensor(host(logits, draws))
    assert different.sum() <= 1, "where a bit of e^x is at the edge"


def test_a_row_is_drawn_from_as_if_it_were_alone():
    logits, draws = ref.make_inputs(3, 40, 300), ref.make_draws(3, 40)
    together = sample.draw(logits, draws)
    order = torch.randperm(40, generator=torch.Generator().manual_seed(2))
    assert torch.equal(sample.draw(logits[order], draws[order]), together[order])
    for row in range(40):
        assert sample.draw(logits[row : row + 1], draws[row : row + 1]) == together[row]


def test_the_definition_word_by_word():
    """In Python's integers, with weights that are powers of two."""
    weights = [ONE >> 2, ONE, ONE >> 1, ONE, ONE >> 1, ONE >> 3]
    logits = torch.tensor([[np.log(weight / ONE) for weight in weights]], dtype=torch.float32)
    logits[0] = logits[0].round(decimals=6)
    weights = [int(weight) for weight in sampler._weights(logits[0].numpy(), 1.0)]

    def kept(top_k: int, top_p: float, least: int) -> list[int]:
        order = sorted(range(6), key=lambda token: (-weights[token], token))[: top_k or 6]
        total, found = sum(weights[token] for token in order), []
        while sum(weights[token] for token in found) < top_p * total:
            found.append(order.pop(0))
        return sorted(token for token in found if weights[token] >= least)

    seen = set()
    for top_k in (0, 1, 3, 4, 6, 9):
        for top_p in (1.0, 0.8, 0.5, 0.1):
            for least in (0, ONE // 3, ONE):
                tokens = kept(top_k, top_p, least)
                total = sum(weights[token] for token in tokens)
                for share in (0.0, 0.3, 0.6, 0.9, 1 - 2**-53):
                    target, expected = int(share * float(total)), iter(tokens)
                    while (target := target - weights[token := next(expected)]) >= 0:
                        pass
                    draws = torch.tensor([Draw(1.0, top_k, top_p, least, share)], dtype=torch.float64)
                    assert sample.draw(logits, draws).item() == token
                seen.add(tuple(tokens))
    assert len(seen) == 5


def test_what_is_no_matrix_or_no_number_is_refused():
    with pytest.raises(ValueError, match=r"\[rows, vocab\]"):
        sample.greedy(torch.zeros(4))
    with pytest.raises(ValueError, match=f"at most {1 << ID_BITS} tokens"):
        sample.draw(torch.zeros(1, 1).expand(1, (1 << ID_BITS) + 1), torch.zeros(1, 5, dtype=torch.float64))
    for draws in (torch.zeros(2, 5), torch.zeros(1, 5, dtype=torch.float64), torch.zeros(2, 4, dtype=torch.float64)):
        with pytest.raises(ValueError, match=r"draws must be \[2, 5\] float64"):
            sample.draw(torch.zeros(2, 3), draws)
