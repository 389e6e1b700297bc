"""Structured output: do answers to random schemas end and validate, and what does a schema cost a token?

    python bench/schemas.py [--model MODEL] [--only answers|speed] [--schemas 200] [--sampling JSON]

Schemas are pydantic's, of random models (schemas_random.py). Answers are the model's at temperature 1, the API's default, up to 512
tokens, and are validated by jsonschema-rs, formats included. Speed: the same prompts with a schema and without, one after the other,
round by round, with temperature 0 and 1.
"""

from __future__ import annotations

import argparse
import itertools
import json
import statistics
import time
from collections import Counter

import jsonschema_rs
from schemas_random import Models
from tqdm import tqdm

from pitstop import LLM, SamplingParams, guide
from pitstop.errors import InvalidRequest
from pitstop.types import Request

TOKENS = 512
SPEED_TOKENS = 96
ROUNDS = 5
RECORDS = {
    "type": "array",
    "items": {
        "type": "object",
        "properties": {
            "name": {"type": "string", "maxLength": 16},
            "age": {"type": "integer", "minimum": 0, "maximum": 150},
            "role": {"enum": ["owner", "member", "guest"]},
            "tags": {"type": "array", "items": {"type": "string", "maxLength": 8}, "maxItems": 3},
        },
        "required": ["name", "age", "role", "tags"],
        "additionalProperties": False,
    },
    "minItems": 1000,
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--model", default="smollm2-135m-instruct")
    parser.add_argument("--only", choices=("answers", "speed"))
    parser.add_argument("--schemas", type=int, default=200)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--sampling", type=json.loads, default={}, help='JSON, such as {"temperature": 0.7, "frequency_penalty": 0.5}')
    options = parser.parse_args()
    llm = LLM(options.model)
    figures: dict[str, object] = {"model": options.model}
    if options.only != "speed":
        figures |= {"sampling": options.sampling} | answers(llm, options.schemas, options.seed, options.sampling)
    if options.only != "answers":
        figures |= speed(llm)
    print(json.dumps(figures))


def answers(llm: LLM, wanted: int, seed: int, sampling: dict[str, float]) -> dict[str, object]:
    """Draw schemas until so many are taken; answer them all, validate what ended."""
    models, taken, refused, compile_ms = Models(seed), [], Counter(), []
    while len(taken) < wanted:
        schema = models.schema()
        begin = time.perf_counter()
        try:
            grammar = guide.json_schema(schema)
            llm.engine.check_grammar(grammar, "schema")
        except InvalidRequest as error:
            refused[_kind(str(error))] += 1
            continue
        compile_ms.append(1e3 * (time.perf_counter() - begin))
        taken.append((schema, grammar))
    params = [SamplingParams(**sampling, max_tokens=TOKENS, seed=seed + i, grammar=grammar) for i, (_, grammar) in enumerate(taken)]
    outputs = llm.generate([_prompt(llm, schema) for schema, _ in taken], params, progress=True)
    ended = [(schema, output) for (schema, _), output in zip(taken, outputs, strict=True) if output.finish_reason == "stop"]
    wrong = [(schema, output.text) for schema, output in ended if not _valid(schema, output.text)]
    for schema, text in wrong:
        print(f"INVALID {text[:300]}\n  of {json.dumps(schema, ensure_ascii=False)[:600]}")
    for output in outputs:
        if output.finish_reason != "stop":
            print(f"not ended ({output.finish_reason}): {output.text[:60]!r} … {output.text[-60:]!r}")
    print(f"schemas: {len(taken)} taken, {sum(refused.values())} refused")
    for reason, count in refused.most_common():
        print(f"  refused {count:3}: {reason}")
    tokens = sorted(len(output.tokens) for output in outputs)
    share = len(ended) / len(taken)
    print(f"ended within {TOKENS} tokens: {len(ended)} of {len(taken)} ({share:.1%}); median length {tokens[len(tokens) // 2]}")
    print(f"valid of these: {len(ended) - len(wrong)} of {len(ended)}")
    print(f"check and compile: median {statistics.median(compile_ms):.1f} ms, longest {max(compile_ms):.1f} ms")
    return {
        "taken": len(taken),
        "refused": dict(refused),
        "ended": len(ended),
        "valid": len(ended) - len(wrong),
        "compile_ms_median": round(statistics.median(compile_ms), 2),
        "compile_ms_max": round(max(compile_ms), 2),
    }


def _prompt(llm: LLM, schema: dict) -> list[int]:
    names = ", ".join(schema.get("properties", {}))
    return llm.template.render([{"role": "user", "content": f"Write a short JSON object with {names}. Use short values."}])


def _kind(message: str) -> str:
    """A refusal without its path."""
    path, _, reason = message.partition(": ")
    return f"{path.rpartition('.')[2].partition('[')[0]}: {reason}"[:100]


def _valid(schema: dict, text: str) -> bool:
    return jsonschema_rs.validator_for(schema, validate_formats=True).is_valid(json.loads(text))


def speed(llm: LLM) -> dict[str, object]:
    """Milliseconds a token of each stream, with a schema and without, alternating."""
    grammar = guide.json_schema(RECORDS)
    llm.engine.check_grammar(grammar, "schema")
    figures: dict[str, object] = {}
    for streams, temperature in itertools.product((1, 8), (0.0, 1.0)):
        times: dict[str, list[float]] = {"with": [], "without": []}
        kinds = (("with", {"grammar": grammar}), ("without", {"ignore_eos": True}))
        for number in tqdm(range(ROUNDS + 1), desc=f"{streams} streams, temperature {temperature:.0f}"):
            for name, fields in kinds if number % 2 else reversed(kinds):
                took = _per_token(llm, streams, {"temperature": temperature, **fields})
                if number:  # the first is a warm-up
                    times[name].append(took)
        least = {name: 1e3 * statistics.median(values) for name, values in times.items()}
        ratio = least["with"] / least["without"]
        steps = f"{least['without']:.2f} ms a step without, {least['with']:.2f} ms with a schema"
        print(f"{streams} streams, temperature {temperature:.0f}: {steps}, {ratio:.3f} times")
        spread = {name: [round(1e3 * value, 2) for value in values] for name, values in times.items()}
        figures[f"streams_{streams}_temperature_{temperature:.0f}"] = {"ratio": round(ratio, 4), **spread}
    return figures


def _per_token(llm: LLM, streams: int, fields: dict) -> float:
    """Seconds a step, while all streams answer."""
    prompt = llm.template.render([{"role": "user", "content": "Write a JSON list of people with name, age, role and tags."}])
    for i in range(streams):
        params = SamplingParams(max_tokens=SPEED_TOKENS, seed=i, **fields)
        llm.engine.submit(Request(id=f"speed-{i}", prompt=prompt, params=params))
    counts, begin, steps = Counter(), 0.0, 0
    while llm.engine.busy:
        outputs = llm.engine.step()
        if begin:
            steps += 1
        elif len(outputs) == streams:
            begin = time.perf_counter()
        counts.update(output.id for output in outputs)
    took = time.perf_counter() - begin
    if set(counts.values()) != {SPEED_TOKENS}:
        raise RuntimeError(f"answers of {sorted(counts.values())} tokens, not {SPEED_TOKENS}: nothing to compare")
    return took / steps


if __name__ == "__main__":
    main()
