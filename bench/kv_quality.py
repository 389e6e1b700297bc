"""What does each KV codec cost in fidelity, and in bits? llama.cpp's caches beside them, on the same text, windows and model file.

    python bench/kv_quality.py [--model NAME_OR_PATH] [--codecs int8,int4,int4:keys=5] [--contexts 2048,8192] [--windows 3] [--quick] …

Windows of consecutive tokens of English, code and Chinese (corpora.py), and one that turns from English to code in its middle; the second
half of each is scored. KL divergence (nats) and equal top tokens are against our own 16-bit cache, which is itself compared with 32 bits:
the floor. Perplexity against the same. llama.cpp's q8_0 and q4_0 caches are compared with its own f16 by its own perplexity tool, whose
other roundings are in both. Bits a value count all that is allocated (kv/capacity.py), averaged over 128 lengths.

A cache is sealed once, so scoring a prompt gives the bits of decoding it token by token: checked first, for every codec, on one window.
Last a needle: a fact told in the first turn of a conversation, asked for in the last. All of it takes more than an hour on two cores, most
of it llama.cpp's at 8K; --quick takes minutes. The last line is JSON.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from unittest import mock

import corpora
import kv_chart
import kv_llama
import kv_needle
import numpy as np
from quality import all_logits
from tqdm import tqdm

from pitstop import LLM, SamplingParams, codecs
from pitstop.config import usable_cores
from pitstop.engine import sampler
from pitstop.kv.capacity import bits_per_value
from pitstop.models.weights.fetch import pull
from pitstop.models.weights.gguf import open_gguf
from pitstop.stats import Comparison
from pitstop.text.tokenizer import Tokenizer
from pitstop.types import KVShape, Request

BASE, FLOOR = "raw16", "raw32"
SWITCH = "english→code"
DECODED = 384
"""Tokens of the window that is decoded token by token: over two segment ends."""


@dataclass(frozen=True)
class Row:
    """One codec on one text. raw16 is compared with raw32, llama.cpp's with its f16, all others with raw16. same_top: 0 to 1."""

    codec: str
    text: str
    context: int
    bits_8k: float
    bits_32k: float
    kld_mean: float
    kld_p999: float
    same_top: float
    ppl_delta_pct: float


def windows_of(tokenizer: Tokenizer, text: str, context: int, count: int) -> list[list[int]]:
    """The text's first `count` windows of `context` tokens. Raises SystemExit when it is too short."""
    ids = tokenizer.encode(text[: 16 * context * count])
    if len(ids) < context * count:
        raise SystemExit(f"a text has {len(ids)} tokens, {context * count} are needed")
    return [ids[i * context : (i + 1) * context] for i in range(count)]


def reference_of(codec: str) -> str:
    """What a codec is compared with."""
    return FLOOR if codec in (BASE, FLOOR) else BASE


def compare(models: dict[str, LLM], windows: list[list[int]], bar: tqdm) -> dict[str, Comparison]:
    """Each codec, the floor included, against its reference, over the second halves. `models` begins with the floor and the base."""
    found = {name: Comparison() for name in models}
    for window in windows:
        half = len(window) // 2
        references: dict[str, np.ndarray] = {}
        for name, llm in models.items():
            logits = all_logits(llm, window, half)[:-1]
            if name in (FLOOR, BASE):
                references[name] = logits
            found[name].add(references[reference_of(name)], logits, np.array(window[half + 1 :]))
            bar.update()
    return found


def decoded_logits(llm: LLM, window: list[int], first: int) -> np.ndarray:
    """Logits at the positions first … len(window) - 2, decoded one by one along the window, [n, vocab] fp32."""
    rows = []

    def forced(logits: np.ndarray, params: SamplingParams, known: list[int], *rest) -> int:
        rows.append(logits.copy())
        return window[len(known)]

    params = SamplingParams(max_tokens=len(window) - first - 1, ignore_eos=True)
    with mock.patch.object(sampler, "sample", forced):
        llm.engine.submit(Request(id="decode", prompt=window[: first + 1], params=params))
        while llm.engine.busy:
            llm.engine.step()
    return np.stack(rows)


def check_decoding(models: dict[str, LLM], window: list[int]) -> None:
    """Raises SystemExit when decoding along the window differs in any bit from scoring it."""
    first = len(window) // 3
    for name, llm in tqdm(models.items(), desc="decoding against scoring", leave=False):
        if not np.array_equal(decoded_logits(llm, window, first), all_logits(llm, window, first)[:-1]):
            raise SystemExit(f"{name}: decoding and scoring differ")
    print(f"decoding token by token and scoring at once: the same bits, for each of {', '.join(models)}", flush=True)


def ours(models: dict[str, LLM], texts: dict[tuple[str, int], list[list[int]]], shape: KVShape) -> Iterator[Row]:
    total = sum(len(windows) * len(models) for windows in texts.values())
    with tqdm(total=total, unit="window") as bar:
        for (text, context), windows in texts.items():
            bar.set_description(f"{text} {context}")
            for name, comparison in list(compare(models, windows, bar).items())[1:]:
                found = comparison.agreement()
                yield Row(
                    name,
                    text,
                    context,
                    *(round(bits_per_value(codecs.get(name), shape, length), 3) for length in (8192, 32768)),
                    found.kl_mean,
                    found.kl_p999,
                    found.same_top,
                    100 * found.perplexity_rise,
                )


def show(rows: list[Row]) -> None:
    for text, context in dict.fromkeys((row.text, row.context) for row in rows):
        print(f"\n{f'{text}, {context}':34}{'bits 8K':>9}{'32K':>8}{'KL mean':>11}{'KL 99.9 %':>11}{'same top':>10}{'PPL':>10}")
        for row in rows:
            if (row.text, row.context) == (text, context):
                print(
                    f"{row.codec:34}{row.bits_8k:9.3f}{row.bits_32k:8.3f}{row.kld_mean:11.6f}{row.kld_p999:11.5f}"
                    f"{100 * row.same_top:8.2f} %{row.ppl_delta_pct:+8.3f} %"
                )


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", default="smollm2-135m-instruct")
    parser.add_argument("--codecs", help=f"separated by semicolons; default all: {';'.join(codecs.names())}")
    parser.add_argument("--texts", default=",".join((*corpora.NAMES, SWITCH)))
    parser.add_argument("--contexts", default="2048,8192")
    parser.add_argument("--windows", type=int, default=3, help="at the shortest context; fewer, for as many tokens, at longer ones")
    parser.add_argument("--quick", action="store_true", help="one window of 1024 tokens a text")
    parser.add_argument("--no-peers", action="store_true")
    parser.add_argument("--no-needle", action="store_true")
    parser.add_argument("--threads", type=int, default=usable_cores())
    parser.add_argument("--png", default=".peers/kv_quality.png", help="where the chart goes")
    corpora.add_options(parser)
    options = parser.parse_args()
    if options.quick:
        options.contexts, options.windows = "1024", 1
    options.contexts = sorted(int(context) for context in options.contexts.split(","))
    options.texts = options.texts.split(",")
    if unknown := set(options.texts) - {*corpora.NAMES, SWITCH}:
        parser.error(f"--texts: {', '.join(unknown)}; choose among {', '.join((*corpora.NAMES, SWITCH))}")
    options.codecs = options.codecs.split(";") if options.codecs else codecs.names()
    return options


def all_windows(options: argparse.Namespace, tokenizer: Tokenizer, raw: dict[str, str]) -> dict[tuple[str, int], list[list[int]]]:
    """By text and context. The switch, at the shortest context only: half a window of English, then half of one of code."""
    shortest = options.contexts[0]
    counts = {context: max(1, options.windows * shortest // context) for context in options.contexts}
    found = {}
    for name in options.texts:
        if name == SWITCH:
            halves = (windows_of(tokenizer, raw[text], shortest // 2, options.windows) for text in ("english", "code"))
            found[name, shortest] = [before + after for before, after in zip(*halves, strict=True)]
        else:
            found |= {(name, context): windows_of(tokenizer, raw[name], context, count) for context, count in counts.items()}
    return found


def main() -> None:
    options = arguments()
    model = pull(options.model)
    file = open_gguf(model)
    shape = file.config.kv_shape
    names = dict.fromkeys((FLOOR, BASE, *options.codecs))
    common = {"device": "cpu", "threads": options.threads, "prefix_cache": False, "max_running": 1, "memory": 1 << 30}
    models = {name: LLM(model, codec=name, **common) for name in tqdm(names, desc="loading", leave=False)}
    tokenizer = models[BASE].tokenizer
    needed = {*options.texts, *(("english", "code") if SWITCH in options.texts else ())} - {SWITCH}
    raw = {name: corpora.read(name, getattr(options, name)) for name in corpora.NAMES if name in needed}
    texts = all_windows(options, tokenizer, raw)
    check_decoding(models, windows_of(tokenizer, next(iter(raw.values())), DECODED, 1)[0])
    rows = list(ours(models, texts, shape))
    needles = {} if options.no_needle else kv_needle.run({name: models[name] for name in models if name != FLOOR}, raw)
    if not options.no_peers:
        rows += [
            Row(f"llama.cpp {cache}", text, context, bits, bits, *figures)
            for (text, context), windows in texts.items()
            if text != SWITCH
            for cache, bits, figures in kv_llama.measure(Path(file.path), raw[text], windows, options.threads)
        ]
    rows.sort(key=lambda row: list(texts).index((row.text, row.context)))
    show(rows)
    kv_needle.show(needles)
    if kv_chart.draw([asdict(row) for row in rows], options.png):
        print(f"\nchart: {options.png}")
    print(json.dumps({"rows": [asdict(row) for row in rows], "needle": needles}, ensure_ascii=False))


if __name__ == "__main__":
    main()
