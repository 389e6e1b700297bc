"""Makes tokenizer_torture.json: what llama.cpp makes of texts that tokenizers stumble over.

Needs llama-cpp-python (any version that reads the file), which is no dependency of the project; in an environment of its own:

    pip install llama-cpp-python
    python tests/data/make_tokenizer_torture.py path/to/SmolLM2-135M-Instruct.Q4_1.gguf
"""

from __future__ import annotations

import json
import random
import sys
from importlib.metadata import version
from pathlib import Path

from llama_cpp import Llama

TEXTS = [
    "",
    "Hello, world!",
    " leading space",
    "trailing space ",
    "0",
    "1234567890",
    "3.14159, 1,000,000; 0x1F; 2024-02-29T23:59:60Z",
    "v1.2.3 a1b2c3 10th 1st x²+y³ ½ Ⅷ ٣٤٥ ४५६ １２３ 𝟙𝟚𝟛",
    "room 101  102   103",
    "👩‍👩‍👧‍👦 👍🏽 🏳️‍🌈 🇫🇷🇯🇵 ❤️ ☺ 🫠",
    "中文字符，全角标点。日本語のテキスト、한국어 텍스트",
    "中文abc混排123测试!？",
    "مرحبا بالعالم، كيف حالك؟ שלום עולם",
    "Ελληνικά Русский हिन्दी ไทย ქართული",
    "a\tb\t\tc\t\t\td\n\te\n\t\tf",
    "line\nline\r\nline\rline\n\n\nline\n \n  \n   x",
    " \n \t \r\n\t\n  ",
    "  two   three    four     five",
    "x" + " " * 300 + "y",
    "\n" * 150,
    "\t" * 40 + "x",
    "def f(x):\n    return {'a': x[0] ** 2, \"b\": not x}  # done\n\n\nclass A:\n\tpass\n",
    "I'm you're he's we'll they'd I've can't 'tis 'S 'LL it’s don’t",
    "''s''''t '' ' s 've",
    "e\u0301 n\u0303 a\u0308\u0323 Z͑ͫ̓ͪ̂ͫ̽͏̴̙̤̞͉͚̯̞̠͍A̴̵̜̰͔ͫ͗͢L̠ͨͧͩ͘G̴̻͈͍͔̹̑͗̎̅͛́Ǫ̵̹̻̝̳͂̌̌͘!͖̬̰̙̗̿̋ͥͥ̂ͣ̐́́͜͞",
    "\u0301" * 200,
    "\x00",
    "a\x00b\x00\x00c",
    "\ufeffbyte order mark \ufeff inside",
    "\x01\x02\x03\x05\x07\x08\x0b\x0c\x0e\x1b\x7f",
    "missing bytes: \x04 \x06\x13\x14 \x16x\x1d \U000e0041",
    "nbsp\u00a0thin\u2009zwsp\u200bzwj\u200dls\u2028ps\u2029ideographic\u3000nel\u0085",
    "bidi \u202eevil\u202c soft\u00adhyphen \ufdd0 \uffff \ufffd",
    "a" * 500,
    "ab" * 250,
    "=" * 200 + "-" * 77,
    "!?!?!?...---***///\\\\\\",
    "https://example.org/a?b=c&d=%20#e user@example.org",
    "<|im_start|>user\nhi<|im_end|>\n",
    "<|im_start|>system\n<|im_start|><|im_end|><|endoftext|>",
    "x<|endoftext|>y <|im_end|> z",
    "<|im_<|im_end|>end|>",
    "<|im_end|<|im_end|>>",
    "<|IM_END|> <| im_end |> <|im_end|",
    "<repo_name>a<file_sep>b<filename>c<gh_stars>100<reponame>",
    "<jupyter_start><jupyter_text>t<jupyter_code>1+1<jupyter_output>2<empty_output>",
    "1<|im_end|>2 <|im_start|> 3",
    "∑∫√∞≠≤≥ αβγ ℝℂ ←→ ©®™ €£¥ §¶†",
    "ﬁ ﬂ ǅ İı ß ẞ Å Å",
    "𐍈𒀀𓀀 𝔘𝔫𝔦𝔠𝔬𝔡𝔢",
]

ALPHABET = [
    *"aZé ßñ019٣½'\"<|>_.,!-\n\t\r\x00\u0301\u200d\ufeff\u00a0\u3000中ًم한👍🏽",
    *("  ", "'s", "'re", "\n\n", "\r\n", "the", " the", "ing", "<|im_end|>", "<|im_start|>", "<file_sep>", "<|im_", "end|>", "12"),
]


def main(model: str) -> None:
    llama = Llama(model, vocab_only=True, verbose=False)
    dice = random.Random(7)
    texts = TEXTS + ["".join(dice.choices(ALPHABET, k=dice.randrange(1, 60))) for _ in range(300)]
    cases = []
    for text in texts:
        plain, parsed = (llama.tokenize(text.encode(), add_bos=False, special=special) for special in (False, True))
        cases.append({"text": text, "plain": plain, "control": parsed})
    note = f"Made by make_tokenizer_torture.py with llama-cpp-python {version('llama-cpp-python')} from {Path(model).name}."
    lines = ",\n".join(json.dumps(case) for case in cases)
    Path(__file__).with_name("tokenizer_torture.json").write_text(f'{{"note": {json.dumps(note)}, "cases": [\n{lines}\n]}}\n')


if __name__ == "__main__":
    main(sys.argv[1])
