"""Facts told in the first turn of a conversation, turns about other things, then a question. Is the fact still found?

The model is small: its answer is begun for it, so that it need only look the fact up.
"""

from __future__ import annotations

from tqdm import tqdm

from pitstop import LLM, SamplingParams

LENGTHS = (500, 1000, 2000, 4000)
"""Tokens of the other turns."""
TURN = 1200
"""Characters of other text in one turn."""
DOORS = {"blue": "7431", "red": "2958", "green": "6180"}


def conversation(door: str, text: str, turns: int) -> list[dict[str, str]]:
    facts = " ".join(f"The password of the {each} door is {password}." for each, password in DOORS.items())
    messages = [
        {"role": "user", "content": f"Please remember this. {facts}"},
        {"role": "assistant", "content": f"I will remember it. {facts}"},
    ]
    for turn in range(turns):
        messages += [
            {"role": "user", "content": f"Read this: {text[turn * TURN : (turn + 1) * TURN]}"},
            {"role": "assistant", "content": "I have read it."},
        ]
    return [*messages, {"role": "user", "content": f"What is the password of the {door} door?"}]


def run(models: dict[str, LLM], raw: dict[str, str]) -> dict[str, dict[str, list]]:
    """By codec: for each length and fact, whether the answer has it ("found"), and the answers, greedy."""
    text = next(iter(raw.values()))
    tokenizer = next(iter(models.values())).tokenizer
    tokens = len(tokenizer.encode(text[: 10 * TURN])) / 10
    params = SamplingParams(max_tokens=8, temperature=0.0)
    results: dict[str, dict[str, list]] = {}
    with tqdm(total=len(models) * len(LENGTHS) * len(DOORS), desc="needle", leave=False) as bar:
        for name, llm in models.items():
            answers, found = [], []
            for length in LENGTHS:
                for door, password in DOORS.items():
                    prompt = llm.template.render(conversation(door, text, round(length / tokens)))
                    begun = tokenizer.encode(f"The password of the {door} door is")
                    answers.append(llm.generate([prompt + begun], params)[0].text)
                    found.append(password in answers[-1])
                    bar.update()
            results[name] = {"found": found, "answers": answers}
    return results


def show(results: dict[str, dict[str, list]]) -> None:
    if results:
        print(f"\n{'needle: facts found':34}" + "".join(f"{f'after {length}':>14}" for length in LENGTHS) + f"{'answers as raw16':>20}")
    for name, result in results.items():
        found = [result["found"][i : i + len(DOORS)] for i in range(0, len(result["found"]), len(DOORS))]
        expected = results["raw16"]["answers"]
        same = sum(a == b for a, b in zip(result["answers"], expected, strict=True))
        counts = "".join(f"{f'{sum(each)} of {len(each)}':>14}" for each in found)
        print(f"{name:34}{counts}{f'{same} of {len(expected)}':>20}")
