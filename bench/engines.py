"""The engines that are compared, each measurement in a process of its own: Pitstop, llama.cpp and OpenVINO GenAI, in all their variants."""

from __future__ import annotations

import itertools
import json
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from measure import CASES, Case
from peers_install import PYTHON, TOOLS, quantized

from pitstop.config import EngineConfig

HERE = Path(__file__).parent


@dataclass(frozen=True)
class Job:
    """One measurement: a case of measure.CASES with its prompts, for one model file and so many threads."""

    case: str
    prompts: list[list[int]]
    model: Path
    threads: int


@dataclass(frozen=True)
class Pitstop:
    """Options of EngineConfig as (name, value)."""

    options: tuple[tuple[str, str], ...] = ()
    engine = "pitstop"

    def __str__(self) -> str:
        return " ".join(value for _, value in self.options) or "default"

    def speed(self, job: Job) -> float:
        return _in_process(sys.executable, "pitstop_speed.py", job, options=dict(self.options))


@dataclass(frozen=True)
class LlamaCpp:
    """kind: the weights' type. flash: its flash attention, on or off. cache: its KV cache's type; compressed ones need flash attention.

    Its tools make random tokens, which costs the same time.
    """

    kind: str
    flash: str
    cache: str = "f16"
    engine = "llama_cpp"

    def __str__(self) -> str:
        return f"{self.kind}, fa {self.flash}" + (f", {self.cache} KV" if self.cache != "f16" else "")

    def speed(self, job: Job) -> float:
        return self.rate(CASES[job.case], job.model, job.threads)

    def rate(self, case: Case, model: Path, threads: int) -> float:
        """Tokens a second of any case; see measure.speed."""
        common = ["-m", quantized(model, self.kind), "-fa", self.flash, "-ctk", self.cache, "-ctv", self.cache, "-t", threads]
        if case.streams > 1:
            context = case.streams * (case.prompt + case.tokens)
            shape = ["-npp", case.prompt, "-ntg", case.tokens, "-npl", case.streams, "-c", context, "-tb", threads]
            return _json_of([TOOLS / "llama-batched-bench", *common, *shape, "--output-format", "jsonl"])["speed_tg"]
        prefill = case.tokens == 1
        depth = case.prompt if case.prompt > 100 and not prefill else 0
        shape = ["-p", case.prompt if prefill else 0, "-n", 0 if prefill else case.tokens, "-d", depth]
        return _json_of([TOOLS / "llama-bench", *common, *shape, "-r", 1, "-o", "jsonl"])["avg_ts"]


@dataclass(frozen=True)
class OpenVino:
    """kv: the precision of its KV cache. compute: "own choice" rounds activations to int8 as llama.cpp does; "bf16" does the rest in
    bfloat16 too; "fp32" rounds nothing: that is what compares with Pitstop's exact activations."""

    kv: str
    compute: str = "own choice"
    engine = "openvino"

    def __str__(self) -> str:
        return f"{self.compute}, {self.kv} KV"

    @property
    def properties(self) -> dict[str, str]:
        compute = {
            "own choice": {},
            "bf16": {"INFERENCE_PRECISION_HINT": "bf16"},
            "fp32": {"INFERENCE_PRECISION_HINT": "f32", "DYNAMIC_QUANTIZATION_GROUP_SIZE": "0"},
        }
        return {"KV_CACHE_PRECISION": self.kv, **compute[self.compute]}

    def speed(self, job: Job) -> float:
        return _in_process(PYTHON, "openvino_speed.py", job, properties=self.properties)


OPENVINO_EXACT = OpenVino("f16", "fp32")
PEERS = (
    *(LlamaCpp(kind, flash) for kind, flash in itertools.product(("as shipped", "Q4_0", "Q8_0"), ("off", "on"))),
    *(OpenVino("f16"), OpenVino("u8"), OpenVino("f16", "bf16"), OPENVINO_EXACT),
)


def activations_known() -> bool:
    """Whether Pitstop here has the option `activations`."""
    return "activations" in EngineConfig.__dataclass_fields__


def pitstop_throughput(model: Path, threads: int, prompts: list[list[int]], tokens: int) -> float:
    """See measure.throughput."""
    request = {"model": str(model), "threads": threads, "options": {}, "prompts": prompts, "tokens": tokens}
    return _json_of([sys.executable, HERE / "pitstop_speed.py"], json.dumps(request))["speed"]


def llama_cpp_answer(model: Path, threads: int, prompt: str, tokens: int) -> str:
    """llama.cpp's greedy continuation of a prompt in which control tokens are spelled out."""
    command = [TOOLS / "llama-completion", "-m", model, "-t", threads, "-no-cnv", "--no-display-prompt", "--no-escape", "--temp", 0]
    return _output([*command, "-n", tokens, "-p", prompt]).strip().removesuffix("[end of text]").strip()


def openvino_answers(model: Path, threads: int, variant: OpenVino, prompts: list[list[int]], tokens: int) -> list[list[int]]:
    """OpenVINO's greedy answers to prompts, as token ids."""
    request = {"model": str(model), "threads": threads, "properties": variant.properties, "prompts": prompts, "answer": tokens}
    return json.loads(_output([PYTHON, HERE / "openvino_speed.py"], json.dumps(request)).splitlines()[-1])


def _in_process(python: str | Path, script: str, job: Job, **more: object) -> float:
    request = {"case": job.case, "prompts": job.prompts, "model": str(job.model), "threads": job.threads, **more}
    return _json_of([python, HERE / script], json.dumps(request))["speed"]


def _json_of(command: Sequence, text: str | None = None) -> dict:
    """The last line of a command's output that is a JSON object. Raises RuntimeError as `_output` does, or when there is none."""
    output = _output(command, text)
    lines = [line for line in output.splitlines() if line.startswith("{")]
    if not lines:
        raise RuntimeError(f"{Path(str(command[0])).name} printed no figures: {output[-1000:]}")
    return json.loads(lines[-1])


def _output(command: Sequence, text: str | None = None) -> str:
    """A command's standard output. Raises RuntimeError with the end of its errors."""
    done = subprocess.run([str(part) for part in command], input=text or "", capture_output=True, text=True)
    if done.returncode:
        raise RuntimeError(f"{Path(str(command[0])).name} ended with status {done.returncode}: {done.stderr[-1000:]}")
    return done.stdout
