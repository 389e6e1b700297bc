"""Padded batches lose their padding at the door: past it there are only lengths, so no mask can be combined wrongly."""

from __future__ import annotations

from collections.abc import Sequence

from pitstop.errors import InvalidRequest


def unpad(input_ids: Sequence[Sequence[int]], attention_mask: Sequence[Sequence[int]] | None) -> list[list[int]]:
    """Rows of `input_ids` [batch, length] without their padding (mask 0) on the left, the right or both sides.

    No mask: every token counts. Raises InvalidRequest for a mask of another shape, values other than 0 and 1, a hole (a 0 between two
    1s: its meaning for positions is ambiguous), and a row of padding alone.
    """
    rows = [[int(token) for token in row] for row in input_ids]
    if attention_mask is None:
        return rows
    masks = [[int(value) for value in row] for row in attention_mask]
    if [len(row) for row in rows] != [len(mask) for mask in masks]:
        raise InvalidRequest("attention_mask must have the shape of input_ids", "attention_mask")
    return [_strip(row, mask, f"attention_mask[{index}]") for index, (row, mask) in enumerate(zip(rows, masks, strict=True))]


def _strip(row: list[int], mask: list[int], field: str) -> list[int]:
    if set(mask) - {0, 1}:
        raise InvalidRequest(f"{field} may hold only 0 and 1", field)
    if 1 not in mask:
        raise InvalidRequest(f"{field} is all padding: a prompt needs at least one token", field)
    first, last = mask.index(1), len(mask) - mask[::-1].index(1)
    if 0 in mask[first:last]:
        raise InvalidRequest(f"{field} has a hole: padding is allowed at the ends only", field)
    return row[first:last]
