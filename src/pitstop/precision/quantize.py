"""`quantize`: from a model to a folder in fewer bits, and a report of what that changed."""

from __future__ import annotations

import json
import math
import shutil
import time
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import torch
from tqdm import tqdm

from pitstop import __version__
from pitstop.config import usable_cores
from pitstop.errors import ConfigError
from pitstop.models.weights.fetch import identity
from pitstop.models.weights.folder import read_config
from pitstop.models.weights.source import ModelSource, open_model
from pitstop.precision.calibrate import calibrated
from pitstop.precision.decoder import DenseDecoder, fp32, load_decoder, refuse_experts
from pitstop.precision.fake_quant import fake_quantised, prepare
from pitstop.precision.folder import FolderWriter, check_room, explained, publish, stored_dtype
from pitstop.precision.grid import Rounded, nearest
from pitstop.precision.measure import MOST, measure
from pitstop.precision.scheme import Scheme, schemes
from pitstop.precision.texts import Windows, read_windows, short_text
from pitstop.precision.training import Training, train
from pitstop.stats import Agreement

REPORT = "quantize.json"
"""The report's name in the folder."""
SHORT = 512
"""Tokens at most of a sequence of the built-in text."""
TRAINED_STATE = 12
"""Bytes that a checkpoint takes for a weight in training."""


@dataclass(frozen=True, slots=True)
class Wish:
    """What to make of a model. group: as schemes takes it. Files as texts.read_windows takes them.

    calibrate: round by this text; "" for not. qat: train on this text; "" for not. heldout: measure on this text; "": on the end of the
    text that the others use, or on a short one. threads: 0 for all.
    """

    bits: int = 4
    group: int = 0
    symmetric: bool = True
    calibrate: str = ""
    qat: str = ""
    heldout: str = ""
    training: Training = field(default_factory=Training)
    threads: int = 0
    command: str = ""


@dataclass(frozen=True, slots=True)
class Result:
    """Of the rounded model, and of the trained one where there was training; the reference is the model as it was."""

    rounded: Agreement
    trained: Agreement | None
    folder: Path

    @property
    def final(self) -> Agreement:
        return self.trained or self.rounded

    @property
    def won_back(self) -> float | None:
        """The share of the rounding's KL divergence that training took away."""
        return None if self.trained is None else 1 - self.trained.kl_mean / self.rounded.kl_mean


def quantize(model: Path, out: Path, wish: Wish) -> Result:
    """Write `model` to the folder `out` as `wish` says, and measure it.

    The folder appears at the end, whole; until then its parts, and the state of a training, lie beside it in a folder whose name begins
    with a dot. Raises ConfigError naming the option at fault, WeightsError, Unsupported, and training.Interrupted after Ctrl-C.
    """
    if out.exists():
        raise ConfigError(f"OUT {out}: is there already; choose another name, or delete it")
    torch.set_num_threads(wish.threads or usable_cores())
    source = open_model(model)
    _refuse_finer(source, wish.bits)
    plan = schemes(source.config, wish.bits, wish.group, wish.symmetric)
    used, heldout = _texts(source, wish)
    part = out.with_name(f".{out.name}.part")
    weights = sum(source.config.tensors()[name][0] * source.config.tensors()[name][1] for name in plan)
    check_room(source, plan, out, weights * TRAINED_STATE if wish.qat else 0)
    with explained(out):
        part.mkdir(parents=True, exist_ok=True)
        folders = _write(source, plan, wish, used, part)
        found = measure(model, folders, heldout, wish.threads)
        result = Result(found["rounded"], found.get("trained"), out)
        final = folders["trained" if wish.qat else "rounded"]
        (final / REPORT).write_text(json.dumps(_report(source, wish, plan, result), indent=2))
        publish(final, out)
        shutil.rmtree(part)
    return result


def _refuse_finer(source: ModelSource, bits: int) -> None:
    """A folder whose weights are integers of as few bits already."""
    if source.path.is_dir() and (held := read_config(source.path)[3]) and min(held.bits) <= bits:
        raise ConfigError(
            f"--bits {bits}: {source.path} holds its weights in INT{min(held.bits)} already; choose fewer bits, or its 16-bit model"
        )


def _texts(source: ModelSource, wish: Wish) -> tuple[Windows | None, list[list[int]]]:
    """What to train on or calibrate with, and what to measure on."""
    if wish.qat and wish.calibrate:
        raise ConfigError("--calibrate beside --qat: training fits the weights by its own text; leave one of them out")
    if wish.qat or wish.calibrate:
        refuse_experts(source.config, "--qat" if wish.qat else "--calibrate")
    vocabulary, length = source.vocabulary(), wish.training.length
    if length > source.config.context:
        raise ConfigError(f"--length {length}: this model's context is {source.config.context} tokens")
    option, file = ("--qat", wish.qat) if wish.qat else ("--calibrate", wish.calibrate)
    used = read_windows(option, file, vocabulary, length) if file else None
    if wish.heldout:
        windows = read_windows("--heldout", wish.heldout, vocabulary, length)
        return used, windows.used + windows.held_out
    return used, used.held_out if used else short_text(vocabulary, min(SHORT, source.config.context))


def _write(source: ModelSource, plan: Mapping[str, Scheme], wish: Wish, used: Windows | None, part: Path) -> dict[str, Path]:
    """The folders that were made, "rounded" and after training "trained"."""
    folders = {"rounded": part / "rounded"}
    dtype = stored_dtype(source)
    decoder = _trained(source, plan, wish, used, part) if wish.qat else None
    if wish.calibrate:
        matrices: Iterator[tuple[str, Rounded]] = ((name, rounded) for name, rounded, _ in calibrated(source, plan, dtype, used.used))
    else:
        matrices = ((name, nearest(fp32(source, name), scheme, dtype)) for name, scheme in plan.items())
    _write_folder(source, plan, folders["rounded"], matrices)
    if decoder:
        folders["trained"] = part / "trained"
        with torch.no_grad():
            chosen = ((f"{name}.weight", _as_trained(module)) for name, module in fake_quantised(decoder))
            changed = {name: weight.detach() for name, weight in decoder.named_parameters()}
            _write_folder(source, plan, folders["trained"], chosen, changed)
    return folders


def _write_folder(
    source: ModelSource,
    plan: Mapping[str, Scheme],
    path: Path,
    matrices: Iterator[tuple[str, Rounded]],
    changed: Mapping[str, torch.Tensor] | None = None,
) -> None:
    shutil.rmtree(path, ignore_errors=True)  # what an earlier run left, which ended before it was whole
    writer = FolderWriter(source, plan, path)
    for name, rounded in tqdm(matrices, total=len(plan), unit="matrix", desc=f"writing, {path.name}"):
        writer.add(name, rounded)
    writer.add_whole(changed)
    writer.finish()


def _trained(source: ModelSource, plan: Mapping[str, Scheme], wish: Wish, used: Windows, part: Path) -> DenseDecoder:
    decoder = load_decoder(source)
    prepare(decoder, plan, stored_dtype(source))
    teacher = None
    if wish.training.objective == "distil":
        teacher = load_decoder(source).requires_grad_(False)
        teacher.token_embd = decoder.token_embd  # which does not learn
    what = json.dumps([identity(source.path), [(name, asdict(scheme)) for name, scheme in plan.items()]])
    train(decoder, teacher, used.used, wish.training, part, what)
    return decoder


def _as_trained(module: torch.nn.Linear) -> Rounded:
    grid = module.weight_fake_quantizer.grid
    return Rounded(grid, grid.codes(module.weight))


def _report(source: ModelSource, wish: Wish, plan: Mapping[str, Scheme], result: Result) -> dict[str, Any]:
    groups = sorted({scheme.group for scheme in plan.values()}, reverse=True)
    text = wish.heldout or (f"the end of {wish.qat or wish.calibrate}" if wish.qat or wish.calibrate else "built-in, short")
    return {
        "model": str(source.path),
        "identity": identity(source.path),
        "pitstop": __version__,
        "torch": torch.__version__,
        "command": wish.command,
        "options": {key: value for key, value in asdict(wish).items() if key != "command"},
        "groups": groups,
        "bits_a_weight": _bits_a_weight(source, plan),
        "time": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        "measured_on": {"text": text, "tokens": result.rounded.tokens, "most_sequences": MOST},
        "rounded": asdict(result.rounded),
        "trained": asdict(result.trained) if result.trained else None,
        "won_back": result.won_back,
    }


def _bits_a_weight(source: ModelSource, plan: Mapping[str, Scheme]) -> float:
    """Of the matrices that were rounded, scales included."""
    shapes = source.config.tensors()
    sizes = [(math.prod(shapes[name]), scheme.bits_a_weight(shapes[name][1])) for name, scheme in plan.items()]
    return sum(count * bits for count, bits in sizes) / sum(count for count, _ in sizes)
