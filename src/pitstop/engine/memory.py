"""A model on its device, and the pool for its cache: what it may take, and what an operator is told where that is too little."""

from __future__ import annotations

from dataclasses import replace
from typing import NamedTuple

import torch

from pitstop import codecs
from pitstop.config import EngineConfig
from pitstop.engine.cuda_graphs import CudaGraphs
from pitstop.errors import ConfigError
from pitstop.kv.capacity import Demand, gpu_pool, pages_within, step_bytes, tail_bytes, what_fits
from pitstop.models import load_model
from pitstop.models.config import ModelConfig
from pitstop.models.decoder import Decoder
from pitstop.models.weights.source import ModelSource
from pitstop.types import Codec, KVShape

RESERVE = 1 << 30
"""Bytes of a GPU that neither weights nor cache nor a step's results take: for graphs, kernels, and what allocators round up."""

SMALLER = ("int8", "int4")
"""Codecs that are told of where the chosen one holds too little."""


class Placed(NamedTuple):
    """config: with the pool's memory, and the context that fits. pages, tails: of the pool; padded: with one tail more. notes: for the
    operator."""

    model: Decoder
    config: EngineConfig
    pages: int
    tails: int
    padded: bool
    notes: list[str]


def place(config: EngineConfig, source: ModelSource, codec: Codec, free: int) -> Placed:
    """Load the model and size the pool: on a GPU afterwards, by what the weights leave of its `free` bytes.

    `config` is resolved. Raises ConfigError for what does not fit, with what would.
    """
    shape, padded = source.config.kv_shape, CudaGraphs.usable(config.device)
    demand = Demand(config.max_running, config.prefill_chunk, config.kv.cached_tails * config.kv.prefix_cache, int(padded))
    tails = demand.tails - padded
    if config.device == "cpu":
        if not demand.longest(config.kv.memory, codec, shape):
            raise ConfigError(
                f"--kv-memory {_mib(config.kv.memory)} is too small: {_needs(demand, codec, shape)}; "
                "raise it, or lower --max-running or --prefill-chunk"
            )
        config = _within(config, demand, codec, shape)
        model = load_model(source, config.device, config.kv.context, config.activations, config.share_weights)
        return Placed(model, config, pages_within(config.kv.memory, demand.tails, codec, shape), tails, padded, [])
    model, weights = _on_gpu(source, config, free)
    sized, notes = on_gpu(config, source.config, codec, demand, free - weights, weights)
    if sized.kv.context < config.kv.context:
        model.limit(sized.kv.context)
    return Placed(model, sized, pages_within(sized.kv.memory, demand.tails, codec, shape), tails, padded, notes)


def on_gpu(
    config: EngineConfig, model: ModelConfig, codec: Codec, demand: Demand, free: int, weights: int
) -> tuple[EngineConfig, list[str]]:
    """The config with the pool's memory and the context that fits, and notes: of a GPU with `free` bytes left beside the weights'."""
    inner = max(model.ffn, model.moe.ffn * model.moe.top_k + model.moe.shared_ffn if model.moe else 0)
    rows, drawn = config.max_running + config.prefill_chunk, config.max_running * (1 + config.speculate)
    reserve = RESERVE + step_bytes(rows, model.width, inner, model.vocab_size, drawn)
    most = gpu_pool(free, weights, config.workers, reserve)
    beside = f"weights take {_gib(weights)} of {_gib(free + weights)}, and {_gib(reserve)} stay free for steps and graphs"
    if config.kv.memory > max(most, 0):
        raise ConfigError(f"--kv-memory {_gib(config.kv.memory)} does not fit: {beside}; at most {_gib(max(most, 0))} do")
    shape, context = model.kv_shape, config.kv.context
    config = replace(config, kv=replace(config.kv, memory=config.kv.memory or most))
    others = [other for other in map(codecs.get, SMALLER) if other.supports(shape, config.device) is None]
    fitting = list(what_fits(config.kv.memory, context, demand, [codec, *others], shape))
    if not demand.longest(config.kv.memory, codec, shape):
        advice = " or ".join(fitting) or "--max-running 1, fewer bits a weight, or a smaller model"
        raise ConfigError(f"no room for the KV cache: {beside}; {_needs(demand, codec, shape)}. Try {advice}")
    config = _within(config, demand, codec, shape)
    if config.kv.context == context:
        return config, []
    more = " or ".join(fitting) or "fewer bits a weight"
    return config, [f"Context {config.kv.context:,} of {context:,} tokens: {beside}. More by {more}"]


def _on_gpu(source: ModelSource, config: EngineConfig, free: int) -> tuple[Decoder, int]:
    """The model, and how many bytes it took."""
    try:
        model = load_model(source, config.device, config.kv.context, config.activations)
    except torch.OutOfMemoryError as error:
        held = torch.cuda.memory_allocated()
        raise ConfigError(
            f"the model does not fit: {_gib(free)} of the GPU were free, and {_gib(held)} of weights had gone there when no more did; "
            "serve one of fewer bits a weight, or --device cpu"
        ) from error
    return model, max(free - gpu_memory(), 0)


def gpu_memory() -> int:
    """Bytes that are free on the GPU."""
    torch.cuda.empty_cache()  # what this process does not use counts as free
    return torch.cuda.mem_get_info()[0]


def _within(config: EngineConfig, demand: Demand, codec: Codec, shape: KVShape) -> EngineConfig:
    """With the context that fits."""
    longest = demand.longest(config.kv.memory, codec, shape)
    return replace(config, kv=replace(config.kv, context=min(config.kv.context, longest)))


def _needs(demand: Demand, codec: Codec, shape: KVShape) -> str:
    tail, least = tail_bytes(codec, shape), demand.least(codec, shape)
    return f"{demand.tails} open segments and a sealed one need {_mib(least)}, {tail / 2**20:.3g} MiB each open one"


def _mib(size: int) -> str:
    return f"{size / 2**20:.0f}MiB"


def _gib(size: int) -> str:
    return f"{size / 2**30:.2f} GiB"
