"""The default model against transformers loading the same GGUF file, with an fp32 cache: logits and greedy continuations."""

from __future__ import annotations

from functools import cache
from pathlib import Path

import numpy as np
import pytest
import torch
from logits import prompt_logits

from pitstop import LLM, SamplingParams

pytestmark = [pytest.mark.model, pytest.mark.timeout(900)]

MAX_DIFFERENCE = 1e-3
"""In logits, which reach about 30: fp32 rounding over 30 layers in another order of summation."""

MAX_DIVERGENCE = 1e-6

CODE = Path(__file__).read_text()
PROMPTS = {
    "question": "<|im_start|>user\nWhat is the capital of France?<|im_end|>\n<|im_start|>assistant\n",
    "prose": "The pit crew had less than three seconds to change all four tyres, and everybody knew what a slow stop would cost.",
    "chinese": "<|im_start|>user\n用一句话解释什么是人工智能,并举一个日常生活中的例子。<|im_end|>\n<|im_start|>assistant\n",
    "code": CODE[:1200],
    "long": Path(pytest.__file__).read_text() + CODE * 3,  # cut to 2,000 tokens
}


@pytest.fixture(scope="module")
def llm(model_path: Path) -> LLM:
    return LLM(model_path, codec="raw32", prefix_cache=False, activations="fp32")


@pytest.fixture(scope="module")
def reference(model_path: Path) -> torch.nn.Module:
    import gguf
    from transformers import AutoModelForCausalLM

    with pytest.MonkeyPatch.context() as patch:  # it reads the file twice, and makes the same table once for each module
        for name in ("GGUFReader", "get_tensor_name_map"):
            patch.setattr(gguf, name, cache(getattr(gguf, name)))
        return AutoModelForCausalLM.from_pretrained(str(model_path.parent), gguf_file=model_path.name, dtype=torch.float32).eval()


def test_exact_activations_keep_the_model(llm: LLM, model_path: Path) -> None:
    """int16 activations against fp32: Kullback-Leibler divergence of the next token's distribution, in nats."""
    exact = LLM(model_path, codec="raw32", prefix_cache=False)
    tokens = llm.tokenizer.encode("".join(PROMPTS.values()), control=True)[:500]
    p, q = (torch.from_numpy(prompt_logits(model, tokens)).double().log_softmax(1) for model in (llm, exact))
    divergence = float((p.exp() * (p - q)).sum(1).mean())
    print(f"mean KL divergence {divergence:.1e}, {int((p.argmax(1) != q.argmax(1)).sum())} of {len(tokens)} top tokens changed")
    assert 0 < divergence < MAX_DIVERGENCE


@pytest.mark.parametrize(
    "names", [[name for name in PROMPTS if name != "long"], pytest.param(["long"], marks=pytest.mark.slow)], ids=["short", "long"]
)
@torch.inference_mode()
def test_logits_and_greedy_continuations_match(llm: LLM, reference: torch.nn.Module, names: list[str]) -> None:
    """Each of 64 tokens is the reference's best after the same text, or its best two are closer than the tolerance of the logits.

    The short prompts are one test, since transformers takes longest to load the file, in each process that runs one.
    """
    prompts = [llm.tokenizer.encode(PROMPTS[name], control=True)[:2000] for name in names]
    answers = llm.generate(prompts, SamplingParams(max_tokens=64, temperature=0.0, ignore_eos=True))
    for name, prompt, ours in zip(names, prompts, (answer.tokens for answer in answers), strict=True):
        assert len(ours) == 64
        logits = reference(torch.tensor([prompt + ours])).logits[0]
        expected = logits[: len(prompt)].numpy()
        difference = np.abs(prompt_logits(llm, prompt) - expected).max()
        print(f"{name}, {len(prompt)} tokens: max |difference| of logits {difference:.2e}, largest logit {np.abs(expected).max():.1f}")
        assert difference <= MAX_DIFFERENCE, name
        best = logits[len(prompt) - 1 : -1].topk(2)
        for position, token in enumerate(ours):
            if token != int(best.indices[position, 0]):
                gap = float(best.values[position, 0] - best.values[position, 1])
                print(f"token {position} differs: the reference's best two are {gap:.1e} apart")
                assert gap < MAX_DIFFERENCE, name


def test_the_capital_of_france(llm: LLM) -> None:
    answer = llm.chat([{"role": "user", "content": "What is the capital of France?"}], SamplingParams(max_tokens=32, temperature=0.0))
    assert answer.text == "The capital of France is Paris."
    assert answer.finish_reason == "stop"
