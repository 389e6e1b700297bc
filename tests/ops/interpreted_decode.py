"""A whole tiny model whose attention runs in Triton's interpreter: captured decode steps beside eager ones. test_launches.py judges.

A program for interpreter.py.
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from interpreter import main
from tape import TapeCapture
from toy_gguf import write_toy_gguf

from pitstop import LLM, SamplingParams
from pitstop.engine import cuda_graphs
from pitstop.engine.cuda_graphs import CudaGraphs
from pitstop.engine.graphs import DecodeGraphs
from pitstop.ops import attention, dispatch

PARAMS = SamplingParams(max_tokens=5, temperature=0.0, logprobs=3, ignore_eos=True)
PROMPTS = [[7 + i % 200 for i in range(length)] for length in (125, 3, 1)]


def answers(path: Path, graphs: bool, backends: tuple[str, ...]) -> tuple[LLM, list]:
    dispatch.use = lambda backend: None
    dispatch._active = backends
    CudaGraphs.usable = staticmethod(lambda device: graphs)
    llm = LLM(path, max_running=4, guard="off", codec="int8", prefix_cache=False, context=512, memory=16 << 20)
    llm.engine._runner.store.pages.zero_()
    outputs = llm.generate(PROMPTS[:1], PARAMS) + llm.generate(PROMPTS, PARAMS)
    return llm, [(output.tokens, output.choices[0].logprobs) for output in outputs]


def steps() -> dict[str, float]:
    cuda_graphs.CudaCapture = TapeCapture
    DecodeGraphs.usable = staticmethod(lambda device: False)
    path = write_toy_gguf(Path(tempfile.mkdtemp()) / "toy.gguf", "Q8_0", tied=False, head_dim=64)
    plain, expected = answers(path, False, ("triton", "cpu", "ref"))
    captured, found = answers(path, True, ("triton", "cpu", "ref"))
    _, exact = answers(path, False, ("cpu",))
    pairs = [(one, other) for i in range(len(found)) for one, other in zip(found[i][1], expected[i][1], strict=True)]
    near = [(one, other) for i in range(len(found)) for one, other in zip(found[i][1], exact[i][1], strict=True)]
    count = plain.engine._cache.pages.touched
    stores = [llm.engine._runner.store.pages[:, :count] for llm in (plain, captured)]
    graphs = captured.engine._runner._decode
    return {
        "log-probabilities that differ": sum(one != other for one, other in pairs),
        "stored bytes that differ": float((stores[0] != stores[1]).sum()) if count else 1,
        "graphs": 0 if graphs._declined else len(graphs._graphs),
        "replays": sum(graphs._capture.replays),
        "largest error": max(abs(one.logprob - other.logprob) for one, other in near if one.token == other.token),
    }


CHECKS = {"steps": steps}


if __name__ == "__main__":
    main(CHECKS, {"triton_kernels": attention})
