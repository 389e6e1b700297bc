"""How much work a step is, so that its time can be foreseen. The unit is one row through the model's matrices. No torch."""

from __future__ import annotations

from collections.abc import Iterable

from pitstop.models.config import ModelConfig
from pitstop.models.encoder_config import EncoderConfig

STEP_ROWS = 16.0
"""A step reads all weights once, which takes about as long as computing so many rows."""


def work(rows: int, attended: int, attended_cost: float) -> float:
    """Of a step of `rows` rows that look at `attended` positions, all together."""
    return STEP_ROWS + rows + attended * attended_cost


def attended(start: int, count: int) -> int:
    """Positions that the rows at start … start + count - 1 of one request look at, each at those before it and itself."""
    return count * start + count * (count + 1) // 2


def total(spans: Iterable[tuple[int, int]], attended_cost: float) -> float:
    """Work of one step of spans (start, count)."""
    rows = pairs = 0
    for start, count in spans:
        rows += count
        pairs += attended(start, count)
    return work(rows, pairs, attended_cost)


def attended_cost(model: ModelConfig) -> float:
    """What one attended position costs, in rows: two multiply-adds a head dimension and layer, over those of a row."""
    projections = model.width * model.head_dim * 2 * (model.heads + model.kv_heads)
    return 2 * model.heads * model.head_dim / (projections + 3 * model.width * model.ffn)


def encoder_attended_cost(model: EncoderConfig) -> float:
    """The same of an encoder, whose rows look at the positions behind them, too: twice what `attended` counts."""
    return 4 * model.width / (4 * model.width**2 + 2 * model.width * model.ffn)
