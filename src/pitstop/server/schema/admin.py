"""The bodies of the /admin routes."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from pitstop.pool import Wish
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


class UpgradeRequest(Body):
    """What is to be served instead; what is left out stays as it is."""

    model: str | None = Field(None, min_length=1, description="A model's name, or its path on the server's machine.")
    kv: str | None = Field(None, min_length=1, description="As --kv of pitstop serve.")
    kv_memory: Int | None = Field(None, ge=1, description="Bytes; by default what the present worker has.")
    kv_guard: Literal["warn", "strict", "off"] | None = None
    context: Int | None = Field(None, ge=0, description="Tokens; 0: the model's own.")
    device: Literal["auto", "cpu", "cuda"] | None = None
    backend: Literal["auto", "cpu", "ref"] | None = None
    activations: Literal["exact", "int8", "fp32"] | None = None
    threads: Int | None = Field(None, ge=0, description="0: every core.")
    prefill_chunk: Int | None = Field(None, ge=1)
    max_running: Int | None = Field(None, ge=1)
    python: str | None = Field(None, min_length=1, description="Path of another installation's interpreter, which runs the new worker.")
    max_kl: float | None = Field(None, ge=0, description="Mean divergence in nats that passes where answers may differ.")
    warm_time: float | None = Field(None, ge=0, le=600, description="Seconds for replaying prompt beginnings into the new worker.")

    def wish(self) -> Wish:
        """As the pool takes it."""
        return Wish(**self.model_dump(exclude_none=True))


class LoraRequest(Body):
    """A LoRA adapter that is to be served."""

    name: str = Field(min_length=1, max_length=128, description="What requests will name as their model.")
    path: str = Field(min_length=1, description="Folder with adapter_config.json and adapter_model.safetensors on the server's machine.")
