"""The bodies of the /admin routes."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from pitstop.server.schema.base import Body, Int, either, text_or_list

MAX_SCORED = 4096
"""Positions that one POST /admin/score may ask for."""


class ScoreRequest(Body):
    """Logits at the prompt's positions from `start` to its end: those at position p predict token p + 1."""

    model: str | None = None
    prompt: either(
        "must be a string or a list of token ids",
        text_or_list,
        text=str,
        list=Annotated[list[Int], Field(min_length=1)],
    ) = Field(description="As in /v1/completions; it must fit the model's context.")
    start: Int = Field(0, description=f"The first position; at most {MAX_SCORED} from there to the prompt's end.")
    timeout: float | None = Field(None, gt=0, description="Seconds the answer may take, at most the server's own limit.")
