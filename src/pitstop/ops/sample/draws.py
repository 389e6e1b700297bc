"""One draw from a row of logits, in integers: their sums are the same in any order, so a GPU and the host draw the same tokens.

Of a row of logits x with the largest m, each token weighs ⌊2⁴⁰ e^((x - m) / temperature)⌋: in fp32, each operation rounded once, e^x that
of csrc/vec.h. What is as large as m weighs 2⁴⁰; as for argmax, NaN is the largest. Likelier is what weighs more, of equals the lower id.

Kept are the `top_k` likeliest; of these as few of the likeliest as weigh ⌈top_p · what these weigh⌉ or more; of these what weighs at least
`least`. The token is the first, by id, with which those kept weigh more than ⌊uniform · what all kept weigh⌋. Both products are in fp64.
"""

from __future__ import annotations

from typing import NamedTuple

ONE_BITS = 40
ONE = 1 << ONE_BITS
"""The weight of the likeliest."""

ID_BITS = 22
"""Of a token. So many tokens of that weight fit into 63 bits, and so do a weight and an id."""


class Draw(NamedTuple):
    """temperature: one of fp32, 0 for LIKELIEST alone. top_k: 0 or the vocabulary and more for all, top_p: 1 for
    all, least: 0 to ONE, uniform: in [0, 1)."""

    temperature: float
    top_k: int
    top_p: float
    least: int
    uniform: float


LIKELIEST = Draw(0.0, 0, 1.0, 0, 0.0)
"""Of the largest logits the one of the lowest id."""
