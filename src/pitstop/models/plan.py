"""What a model consists of, without its weights: every tensor, where it lies, its bytes. Imports no torch."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from pitstop.errors import Unsupported
from pitstop.models.config import ModelConfig
from pitstop.models.encoder_config import EncoderConfig
from pitstop.models.families import grok1, grok2
from pitstop.models.families.family import Family
from pitstop.models.keys import Keys
from pitstop.models.weights.files import CHECKPOINT
from pitstop.models.weights.folder import read_config
from pitstop.models.weights.gguf import open_gguf
from pitstop.models.weights.grok1 import is_grok1, leaves, open_grok1, place
from pitstop.models.weights.shards import file_entries
from pitstop.models.weights.tensor_parallel import tensor_parallel_files

PARTS = ("embedding", "attention", "router", "experts", "feed-forward", "norms", "output head")
_BYTES = {"float32": 4, "float16": 2, "bfloat16": 2}


@dataclass(frozen=True, slots=True)
class Planned:
    """One tensor as it is stored. name: its own in the checkpoint. part: of PARTS. file: "" where it is not known."""

    name: str
    part: str
    shape: tuple[int, ...]
    stored: str
    file: str
    nbytes: int


@dataclass(frozen=True, slots=True)
class Plan:
    name: str
    config: ModelConfig
    tensors: tuple[Planned, ...]

    @property
    def nbytes(self) -> int:
        return sum(tensor.nbytes for tensor in self.tensors)

    def by_part(self) -> dict[str, int]:
        """Bytes of each part that there is."""
        sizes = Counter()
        for tensor in self.tensors:
            sizes[tensor.part] += tensor.nbytes
        return {part: sizes[part] for part in PARTS if sizes[part]}

    def read_for_a_token(self) -> int:
        """Bytes of weights that one token alone needs: of the experts its own, of an embedding that is not the head a row."""
        sizes, c = self.by_part(), self.config
        total = self.nbytes
        if c.moe:
            total -= sizes["experts"] * (c.moe.experts - c.moe.top_k) // c.moe.experts
        return total if c.tied_head else total - sizes["embedding"] * (c.vocab_size - 1) // c.vocab_size


def plan(target: str) -> Plan:
    """Of a published release by its name (RELEASES), or of a GGUF file or folder by its path: config.json alone will do.

    Raises WeightsError for a config that we do not run or a file that is not sound.
    """
    if target in RELEASES:
        return RELEASES[target]()
    path = Path(target).expanduser()
    if path.is_file():
        source = open_gguf(path)
        found = [Planned(name, _part(name), shape, kind, path.name, size) for name, kind, shape, size in source.listing()]
        return Plan(str(path), source.config, tuple(found))
    if is_grok1(path):
        return _grok1(str(path), open_grok1(path).config)
    return _folder(path)


def _part(name: str) -> str:
    """From GGUF's name of a tensor, with or without what follows it."""
    stem = name.split(".")[2] if name.startswith("blk.") else name.split(".")[0]
    if stem in ("token_embd", "output", "rope_freqs"):
        return {"token_embd": "embedding", "output": "output head"}.get(stem, "attention")
    if "norm" in stem:
        return "norms"
    if stem.startswith("attn"):
        return "attention"
    return "experts" if stem.endswith("_exps") else "router" if stem == "ffn_gate_inp" else "feed-forward"


def _folder(path: Path) -> Plan:
    stated, family, config, _ = read_config(path)
    if isinstance(config, EncoderConfig):
        raise Unsupported(f"{path}: {config.architecture} is an encoder, and plans are of decoders")
    parts = {family.hugging_face(name).rpartition(".")[0]: _part(name) for name in config.tensors()}
    files = tensor_parallel_files(path) or sorted(path.glob("*.safetensors"))
    held = [
        Planned(name, parts.get(name.rpartition(".")[0], "feed-forward"), entry.shape, entry.kind, file.name, entry.end - entry.begin)
        for file in files
        for name, entry in file_entries(file).items()
    ]
    dtype = str(stated.get("dtype") or stated.get("torch_dtype") or "bfloat16")
    return Plan(str(path), config, tuple(held or _expected(family, config, dtype, lambda name: [""])))


def _expected(family: Family, config: ModelConfig, dtype: str, files: Callable[[str], list[str]]) -> Iterator[Planned]:
    """Every tensor in `dtype`, in equal parts of each of its files."""
    for name, shape in config.tensors().items():
        theirs = family.hugging_face(name)
        where = files(theirs)
        shown = where[0] if len(where) == 1 else f"{where[0]} … {len(where) - 1:03d}"
        yield Planned(theirs, _part(name), shape, dtype, shown, math.prod(shape) * _BYTES.get(dtype, 2))


def _grok1(name: str, config: ModelConfig) -> Plan:
    parts = {place(tensor)[0]: _part(tensor) for tensor in config.tensors()}
    found = [
        Planned(leaf.path, parts[leaf.path], leaf.shape, f"int8, scales {list(leaf.scales)}" if leaf.scales else "float32",
                f"{CHECKPOINT}/{leaf.file}", leaf.nbytes)
        for leaf in leaves(config).values()
    ]  # fmt: skip
    return Plan(name, config, tuple(found))


_GROK2_FILES = ("embed_tokens", "lm_head", "model.norm", "mlp.gate_proj", "mlp.down_proj", "mlp.up_proj", "w1", "w2", "w3", "k_proj",
                "o_proj", "q_proj", "v_proj", "pre_attn_norm", "post_attn_norm", "pre_moe_norm", "post_moe_norm",
                "block_sparse_moe.gate")  # fmt: skip
"""What the release's files hold, by their number, all layers together; w1, w2 and w3 in eight files each."""
_GROK2_RANKS = 8


def _grok2_files(name: str) -> list[str]:
    number = next(i for i, kind in enumerate(_GROK2_FILES) if name.endswith(f"{kind}.weight"))
    ranks = [f"{rank:03d}" for rank in range(_GROK2_RANKS)] if _GROK2_FILES[number] in ("w1", "w2", "w3") else ["common"]
    return [f"pytorch_model-{number:05d}-TP-{rank}.safetensors" for rank in ranks]


def _published_grok1() -> Plan:
    return _grok1("xai-org/grok-1", grok1.FAMILY.config(Keys(Path("config.json"), grok1.PUBLISHED)))


def _published_grok2() -> Plan:
    config = grok2.FAMILY.config(Keys(Path("config.json"), grok2.PUBLISHED))
    return Plan("xai-org/grok-2", config, tuple(_expected(grok2.FAMILY, config, "bfloat16", _grok2_files)))


RELEASES: dict[str, Callable[[], Plan]] = {"xai-org/grok-1": _published_grok1, "xai-org/grok-2": _published_grok2}
"""Releases whose layout is known without them."""
