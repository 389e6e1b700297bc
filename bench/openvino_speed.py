"""OpenVINO GenAI, run by the peers' own Python: {"model", "threads", "properties", "case", "prompts"} → {"speed"}, or its answers.

With {"answer": tokens} instead of a case, the greedy answers to the prompts, as token ids.

Its continuous-batching pipeline, which also serves its single requests, driven step by step as Pitstop's engine is.
"""

from __future__ import annotations

import json
import sys

import measure
import numpy as np
import openvino
import openvino_genai as genai

CACHE_GB = 2


class OpenVino:
    """See measure.Stepper. `properties`: of its CPU plugin."""

    def __init__(self, model: str, threads: int, properties: dict[str, str]) -> None:
        scheduler = genai.SchedulerConfig()
        scheduler.cache_size, scheduler.enable_prefix_caching, scheduler.max_num_seqs = CACHE_GB, False, 64
        self._pipeline = genai.ContinuousBatchingPipeline(model, scheduler, "CPU", {"INFERENCE_NUM_THREADS": threads, **properties})
        self._handles: dict[int, genai.GenerationHandle] = {}
        self._requests = 0

    def submit(self, index: int, prompt: list[int], tokens: int) -> None:
        config = genai.GenerationConfig(max_new_tokens=tokens, ignore_eos=True, do_sample=False)
        self._handles[index] = self._pipeline.add_request(self._requests, _tensor(prompt), config)
        self._requests += 1

    def step(self) -> list[int]:
        self._pipeline.step()
        came = []
        for index, handle in self._handles.items():
            while handle.can_read():
                came += [index] * sum(len(output.generated_ids) for output in handle.read().values())
        return came

    def answer(self, prompt: list[int], tokens: int) -> list[int]:
        """The greedy answer's tokens, up to the end token."""
        end = self._pipeline.get_tokenizer().get_eos_token_id()
        config = genai.GenerationConfig(max_new_tokens=tokens, eos_token_id=end, stop_token_ids={end}, do_sample=False)
        return self._pipeline.generate([_tensor(prompt)], [config])[0].m_generation_ids[0]


def _tensor(prompt: list[int]) -> openvino.Tensor:
    return openvino.Tensor(np.array([prompt], np.int64))


def main() -> None:
    request = json.load(sys.stdin)
    engine = OpenVino(request["model"], request["threads"], request["properties"])
    if "answer" in request:
        print(json.dumps([engine.answer(prompt, request["answer"]) for prompt in request["prompts"]]))
    else:
        print(json.dumps({"speed": measure.speed(engine, measure.CASES[request["case"]], request["prompts"])}))


if __name__ == "__main__":
    main()
