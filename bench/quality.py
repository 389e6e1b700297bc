"""What does each activation mode cost in fidelity, and bring in speed? And what do the three engines answer?

    python bench/quality.py [--model NAME_OR_PATH] [--text FILE] [--windows 8] [--length 1024] [--modes fp32,exact,int8] …

The reference is transformers in fp32 on the same GGUF. Each window of the text is a prompt of its own; at each of its positions the
reference's distribution of the next token is compared with Pitstop's, with an fp32 KV cache, so that only the products differ, and once
with the cache that serves. Printed for each mode: KL divergence (mean and 99.9 %, nats), changed top tokens, perplexity, speed. Then the
answers to ten plain questions at temperature 0. The text is the Python language reference unless given. The last line is JSON.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from unittest import mock

import engines
import numpy as np
import peers_install
import texts
import torch
from measure import CASES, Case

from pitstop import LLM, SamplingParams
from pitstop.config import usable_cores
from pitstop.engine import sampler
from pitstop.engine.runner import Runner
from pitstop.models.weights.fetch import pull
from pitstop.stats import Comparison
from pitstop.types import Logprob, Request, StepPlan

SERVED = "raw16"
SPEEDS = ("decode_1", "prefill_512")
ANSWER_TOKENS = 40


def all_logits(llm: LLM, prompt: list[int], first: int = 0) -> np.ndarray:
    """Pitstop's logits at every position from `first` on, [len(prompt) - first, vocab] fp32, computed in chunks as the server does."""
    chunks, original = [], Runner.forward

    def keep(runner: Runner, plan: StepPlan) -> tuple[torch.Tensor, torch.Tensor]:
        logits, states = original(runner, plan)
        chunks.append(logits[max(first - plan.spans[0].start, 0) :].numpy().copy())
        return logits, states

    unscored = mock.patch.object(sampler, "logprob", lambda row, token, count: Logprob(token, 0.0))  # nobody looks at them
    with unscored, mock.patch.object(Runner, "forward", keep):
        llm.engine.submit(Request(id="score", prompt=prompt, params=SamplingParams(max_tokens=0, prompt_logprobs=0)))
        while llm.engine.busy:
            llm.engine.step()
    return np.concatenate(chunks)


def reference_logits(model: Path, windows: list[list[int]]) -> Iterator[np.ndarray]:
    """transformers' logits of each window, [length, vocab] fp32."""
    from transformers import AutoModelForCausalLM

    reference = AutoModelForCausalLM.from_pretrained(str(model.parent), gguf_file=model.name, dtype=torch.float32).eval()
    for window in windows:
        with torch.inference_mode():
            yield reference(torch.tensor([window])).logits[0].numpy()


def compare(model: Path, windows: list[list[int]], modes: dict[str, LLM]) -> dict[str, dict[str, float]]:
    """Figures of each mode and of the reference itself, by name."""
    comparisons = {name: Comparison() for name in ("reference", *modes)}
    for window, expected in zip(windows, reference_logits(model, windows), strict=True):
        targets = np.array(window[1:])
        for name, comparison in comparisons.items():
            logits = expected if name == "reference" else all_logits(modes[name], window)
            comparison.add(expected[:-1], logits[:-1], targets)
    return {name: asdict(comparison.agreement()) for name, comparison in comparisons.items()}


def answers(model: Path, modes: dict[str, LLM], threads: int, peers: bool) -> dict[str, list[str]]:
    """Each engine's answers to texts.QUESTIONS, through the model's chat template, greedy."""
    any_llm = next(iter(modes.values()))
    params = SamplingParams(max_tokens=ANSWER_TOKENS, temperature=0.0)
    result = {f"pitstop {name}": [llm.chat(_message(q), params).text for q in texts.QUESTIONS] for name, llm in modes.items()}
    if peers:
        tokenizer = any_llm.tokenizer
        prompts = [any_llm.template.render(_message(question)) for question in texts.QUESTIONS]
        spelled = [b"".join(map(tokenizer.token_bytes, prompt)).decode() for prompt in prompts]
        result["llama.cpp"] = [engines.llama_cpp_answer(model, threads, text, ANSWER_TOKENS) for text in spelled]
        for variant in (engines.OpenVino("f16"), engines.OPENVINO_EXACT):
            tokens = engines.openvino_answers(model, threads, variant, prompts, ANSWER_TOKENS)
            result[f"openvino {variant.compute}"] = [tokenizer.decode(t for t in ids if not tokenizer.is_control(t)) for ids in tokens]
    return result


def _message(question: str) -> list[dict]:
    return [{"role": "user", "content": question}]


def speeds(model: Path, llm: LLM, text: str, mode: str, threads: int) -> dict[str, float]:
    """Tokens a second of one activation mode, as it serves."""
    variant = engines.Pitstop((("activations", mode),))
    return {case: variant.speed(engines.Job(case, texts.prompts(llm.tokenizer, text, CASES[case]), model, threads)) for case in SPEEDS}


def show(figures: dict[str, dict[str, float]]) -> None:
    print(f"{'':16}{'KL mean':>12}{'KL 99.9 %':>12}{'top changed':>13}{'perplexity':>12}" + "".join(f"{case:>13}" for case in SPEEDS))
    for name, line in figures.items():
        changed = 100 * (1 - line["same_top"])
        speed = "".join(f"{line[case]:13.1f}" if case in line else f"{'':13}" for case in SPEEDS)
        print(f"{name:16}{line['kl_mean']:12.2e}{line['kl_p999']:12.2e}{changed:11.3f} %{line['perplexity']:12.4f}{speed}")


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", default="smollm2-135m-instruct")
    parser.add_argument("--text", help="a file of real text")
    parser.add_argument("--windows", type=int, default=8)
    parser.add_argument("--length", type=int, default=1024)
    parser.add_argument("--modes", default="fp32,exact,int8", help="values of the option `activations`")
    parser.add_argument("--threads", type=int, default=usable_cores())
    parser.add_argument("--no-peers", action="store_true", help="Pitstop's answers only")
    parser.add_argument("--no-speed", action="store_true")
    return parser.parse_args()


def main() -> None:
    options = arguments()
    path, text, names = Path(pull(options.model)), texts.read(options.text), options.modes.split(",")
    common = {"threads": options.threads, "prefix_cache": False, "memory": 512 << 20}
    exact_cache = {name: LLM(path, activations=name, codec="raw32", **common) for name in names}
    served = {name: LLM(path, activations=name, codec=SERVED, **common) for name in names}
    prompts = texts.prompts(served[names[0]].tokenizer, text, Case(options.windows, options.length, 1))
    figures = compare(path, prompts, exact_cache | {f"{name}, {SERVED}": llm for name, llm in served.items()})
    if not options.no_speed:
        for name, llm in served.items():
            figures[f"{name}, {SERVED}"] |= speeds(path, llm, text, name, options.threads)
    print(f"{options.windows} windows of {options.length} tokens; speed in tokens/s")
    show(figures)
    if not options.no_peers:
        peers_install.install(options.threads)
    answered = answers(path, served, options.threads, not options.no_peers)
    for index, question in enumerate(texts.QUESTIONS):
        print(f"\n{question}")
        for name, lines in answered.items():
            print(f"  {name:20} {' '.join(lines[index].split())}")
    print(json.dumps({"tokens": options.windows * (options.length - 1), "modes": figures, "answers": answered}, ensure_ascii=False))


if __name__ == "__main__":
    main()
