"""Quantisation-aware training: the decoder learns on a text with its weights rounded at every step (Jacob et al. 2018).

The objective is to give the distributions of the model as it was (distillation, Hinton et al. 2015), or the text's next tokens.
"""

from __future__ import annotations

import json
import math
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Literal

import numpy as np
import torch
from torch.nn import functional as F
from tqdm import tqdm

from pitstop.errors import ConfigError, PitstopError
from pitstop.precision.decoder import DenseDecoder

Objective = Literal["distil", "tokens"]
STATE = "training.pt"
"""The checkpoint's name in its folder."""
_SAVE_EVERY = 60.0
"""Seconds between checkpoints."""
_WARM_UP = 0.05
"""Of the steps, in which the rate rises from 0; in the rest it falls to 0 along half a cosine."""
_CLIP = 1.0
"""Longest gradient, all parameters together."""
_BETAS = (0.9, 0.95)


@dataclass(frozen=True, slots=True)
class Training:
    """steps of `batch` sequences of `length` tokens; lr: the highest rate. Which sequences a step sees follows from seed and step."""

    steps: int = 200
    lr: float = 1e-4
    batch: int = 4
    length: int = 256
    seed: int = 0
    objective: Objective = "distil"


class Interrupted(PitstopError):
    """Training was asked to stop, and has kept its state."""


def train(
    decoder: DenseDecoder, teacher: DenseDecoder | None, windows: list[list[int]], plan: Training, folder: Path, identity: str
) -> list[float]:
    """Train a prepared decoder in place; the losses of all steps. teacher: whose distributions it shall give; None: the next tokens.

    Goes on from the checkpoint in `folder`, if one is there; keeps one there once a minute, at Ctrl-C and at SIGTERM. A run in pieces
    ends as one without a break does, to the bit on one machine. identity: what the model is, for the check that a checkpoint is this run's.
    Raises Interrupted after Ctrl-C, ConfigError for a checkpoint of another run, or a loss that is not finite.
    """
    data = torch.tensor(windows)
    trained = [weight for name, weight in decoder.named_parameters() if weight.requires_grad_(_learns(name)).requires_grad]
    optimiser = torch.optim.AdamW(trained, lr=plan.lr, betas=_BETAS, weight_decay=0.0, fused=True)
    state = Checkpoint(folder, json.dumps([asdict(plan), identity, hash_of(data)]))
    losses = state.load(decoder, optimiser)
    with _stop_asked() as stop, tqdm(total=plan.steps, initial=len(losses), unit="step", desc="training") as bar:
        while len(losses) < plan.steps:
            step = len(losses)
            for group in optimiser.param_groups:
                group["lr"] = plan.lr * rate(step, plan.steps)
            losses.append(_step(decoder, teacher, data[batch_of(step, len(data), plan)], optimiser, trained))
            if not math.isfinite(losses[-1]):
                raise ConfigError(f"--lr {plan.lr:g}: the loss is {losses[-1]} at step {step + 1}; choose a lower rate")
            bar.set_postfix(loss=f"{np.mean(losses[-10:]):.4f}", refresh=False)
            bar.update()
            state.save_if_due(decoder, optimiser, losses, at_once=stop.is_set() or len(losses) == plan.steps)
            if stop.is_set() and len(losses) < plan.steps:
                raise Interrupted(f"stopped at step {len(losses)} of {plan.steps}; the same command goes on from here")
    return losses


def batch_of(step: int, count: int, plan: Training) -> list[int]:
    """Which of `count` sequences a step sees: all once in an order of chance, then all in another one."""
    chosen = []
    for number in range(step * plan.batch, (step + 1) * plan.batch):
        epoch, place = divmod(number, count)
        chosen.append(int(np.random.default_rng([plan.seed, epoch]).permutation(count)[place]))
    return chosen


def rate(step: int, steps: int) -> float:
    """Of the highest rate, at a step."""
    rising = max(1, round(_WARM_UP * steps))
    if step < rising:
        return (step + 1) / rising
    return (1 + math.cos(math.pi * (step - rising) / max(1, steps - rising))) / 2


def _step(
    decoder: DenseDecoder,
    teacher: DenseDecoder | None,
    tokens: torch.Tensor,
    optimiser: torch.optim.Optimizer,
    trained: list[torch.nn.Parameter],
) -> float:
    with autocast():
        logits = decoder(tokens)
        if teacher is not None:
            with torch.no_grad():
                wanted = teacher(tokens)
    if teacher is None:
        loss = F.cross_entropy(logits[:, :-1].flatten(0, 1).float(), tokens[:, 1:].flatten())
    else:
        loss = distance(wanted.flatten(0, 1), logits.flatten(0, 1))
    optimiser.zero_grad(set_to_none=True)
    loss.backward()
    torch.nn.utils.clip_grad_norm_(trained, _CLIP)
    optimiser.step()
    return loss.item()


def distance(wanted: torch.Tensor, logits: torch.Tensor) -> torch.Tensor:
    """Mean KL(wanted ‖ logits) of rows of logits [rows, vocab], in nats, with a gradient."""
    p = wanted.float().log_softmax(-1)
    return F.kl_div(logits.float().log_softmax(-1), p, log_target=True, reduction="batchmean")


def autocast() -> torch.autocast:
    """Products in bf16 where the processor multiplies them faster."""
    fast = torch.cpu._is_avx512_bf16_supported() or torch.cpu._is_amx_tile_supported()
    return torch.autocast("cpu", torch.bfloat16, enabled=fast)


def _learns(name: str) -> bool:
    """Embedding and head, which are not rounded, stay as they are."""
    return not name.startswith(("token_embd", "output.weight"))


def hash_of(data: torch.Tensor) -> int:
    """What tells a text from others."""
    weights = torch.arange(1, data.numel() + 1, dtype=torch.int64)
    return int((data.flatten() * weights).sum())


class Checkpoint:
    """The state of a run in a file that is always whole. run: what it is a state of."""

    def __init__(self, folder: Path, run: str) -> None:
        self._file, self._run = folder / STATE, run
        self._saved = time.monotonic()

    def load(self, decoder: DenseDecoder, optimiser: torch.optim.Optimizer) -> list[float]:
        """The losses so far; none where there is no state. Raises ConfigError for another run's."""
        if not self._file.exists():
            return []
        held = torch.load(self._file, weights_only=True, mmap=True)
        if held["run"] != self._run:
            raise ConfigError(
                f"--qat: {self._file} is the state of a training with other options; repeat those, or delete {self._file.parent}"
            )
        with torch.no_grad():
            for name, weight in decoder.named_parameters():
                if weight.requires_grad:
                    weight.copy_(held["weights"][name])
        optimiser.load_state_dict(held["optimiser"])
        return held["losses"]

    def save_if_due(self, decoder: DenseDecoder, optimiser: torch.optim.Optimizer, losses: list[float], at_once: bool) -> None:
        if at_once or time.monotonic() - self._saved > _SAVE_EVERY:
            weights = {name: weight.detach() for name, weight in decoder.named_parameters() if weight.requires_grad}
            part = self._file.with_suffix(".part")
            torch.save({"run": self._run, "weights": weights, "optimiser": optimiser.state_dict(), "losses": losses}, part)
            part.replace(self._file)
            self._saved = time.monotonic()


@contextmanager
def _stop_asked() -> Iterator[threading.Event]:
    """Set at the first Ctrl-C or SIGTERM; a second Ctrl-C ends the process as usual."""
    asked = threading.Event()
    held: dict[int, Callable | int | None] = {}

    def ask(number: int, _: object) -> None:
        asked.set()
        signal.signal(signal.SIGINT, signal.default_int_handler)

    if threading.current_thread() is threading.main_thread():
        held = {number: signal.signal(number, ask) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield asked
    finally:
        for number, handler in held.items():
            signal.signal(number, handler)
