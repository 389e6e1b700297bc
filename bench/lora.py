"""What LoRA adapters cost: tokens a second of eight streams of the model alone, and with 1, 2 and 8 adapters among them.

`python bench/lora.py [--rank 8] [--rounds 3] [--eager]`. Ceiling: the streams without any adapter. With one adapter every other stream uses
it, with two each third the model and the others, with eight each stream its own. Seeded adapters on all seven projections of every layer.
--eager: steps with adapters are never recorded. Last line: JSON.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import tempfile
from pathlib import Path

import measure
import texts
from measure import Case

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))

from lora_adapters import write_adapter

from pitstop import LLM, SamplingParams
from pitstop.engine import graphs
from pitstop.models.weights.fetch import DEFAULT_MODEL
from pitstop.models.weights.source import open_model
from pitstop.types import Request

CASE = Case(8, 64, 128)
MIXES = {"none": (None,), "1": (None, "0"), "2": (None, "0", "1"), "8": tuple("01234567")}
"""Which adapters the streams use, in turn."""


class Mixed:
    """See measure.Stepper."""

    def __init__(self, llm: LLM, names: tuple[str | None, ...]) -> None:
        self._llm = llm
        self._names = names

    def submit(self, index: int, prompt: list[int], tokens: int) -> None:
        params = SamplingParams(temperature=0.0, max_tokens=tokens, ignore_eos=True)
        name = self._names[index % len(self._names)]
        adapter = self._llm.load_adapter(name, FOLDERS[name]).id if name else ""
        self._llm.engine.submit(Request(id=str(index), prompt=prompt, params=params, adapter=adapter))

    def step(self) -> list[int]:
        return [int(output.id) for output in self._llm.engine.step() for _ in output.tokens]


FOLDERS: dict[str, Path] = {}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default=DEFAULT_MODEL)
    parser.add_argument("--rank", type=int, default=8)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--threads", type=int, default=0)
    parser.add_argument("--eager", action="store_true")
    options = parser.parse_args()
    if options.eager:
        graphs.OFTEN = sys.maxsize
    llm = LLM(options.model, prefix_cache=False, threads=options.threads)
    config = open_model(llm.engine.config.model).config
    prompts = texts.prompts(llm.tokenizer, texts.read(), CASE)
    with tempfile.TemporaryDirectory() as root:
        for seed, name in enumerate("01234567"):
            FOLDERS[name] = write_adapter(Path(root) / name, config, seed, rank=options.rank)
        size = llm.load_adapter("0", FOLDERS["0"]).size
        speeds: dict[str, list[float]] = {mix: [] for mix in MIXES}
        for _ in range(options.rounds):
            for mix, names in MIXES.items():
                speeds[mix].append(measure.speed(Mixed(llm, names), CASE, prompts))
    ceiling = statistics.median(speeds["none"])
    print(f"{CASE.streams} streams, prompts of {CASE.prompt}, answers of {CASE.tokens}")
    print(f"rank {options.rank}, {size / 2**20:.1f} MiB an adapter")
    print(f"adapters  tokens/s  of {ceiling:.0f}")
    for mix, values in speeds.items():
        speed = statistics.median(values)
        print(f"{mix:>8} {speed:>9.1f} {speed / ceiling:>8.2f}   ({min(values):.0f} to {max(values):.0f})")
    print(json.dumps({"rank": options.rank, "eager": options.eager, "bytes": size, "tokens_per_s": speeds}))


if __name__ == "__main__":
    main()
