"""Choices from logits: those of the sampler on the host, ties included."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from pitstop.engine import sampler
from pitstop.ops import sample
from pitstop.ops.sample import ref
from pitstop.types import SamplingParams

VOCABS = [1, 7, 100, 5000]


@pytest.mark.parametrize("vocab", VOCABS)
def test_greedy_is_the_host_s_choice(vocab):
    logits = ref.make_inputs(vocab, 12, vocab)
    params = SamplingParams(temperature=0.0)
    chosen = [sampler.sample(row.numpy(), params, [1], 1, 0, frozenset()) for row in logits]
    ids = sample.greedy(logits)
    assert ids.dtype is torch.int64
    assert ids.tolist() == chosen == logits.numpy().argmax(1).tolist()


@pytest.mark.parametrize("k", [1, 5, 64, 9000])
@pytest.mark.parametrize("vocab", VOCABS)
def test_candidates_are_the_host_s_likeliest(vocab, k):
    logits = ref.make_inputs(vocab, 12, vocab)
    values, ids = sample.candidates(logits, k)
    assert values.shape == ids.shape == (12, min(k, vocab))
    assert ids.dtype is torch.int64
    assert torch.equal(ids[:, 0], sample.greedy(logits))
    for row, row_values, row_ids in zip(logits, values, ids, strict=True):
        np.testing.assert_array_equal(row_values, row[row_ids])
        if not row.isnan().any():  # numpy does not order NaN by ids
            assert row_ids.tolist() == np.lexsort((np.arange(vocab), -row.numpy()))[:k].tolist()


def test_what_is_no_matrix_or_no_number_is_refused():
    with pytest.raises(ValueError, match=r"\[rows, vocab\]"):
        sample.greedy(torch.zeros(4))
    with pytest.raises(ValueError, match="positive, not 0"):
        sample.candidates(torch.zeros(2, 3), 0)
