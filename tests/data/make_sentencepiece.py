"""Makes sentencepiece.json: two tiny tokenizer.model files, and what the library makes of texts that tokenizers stumble over.

Needs sentencepiece, which is no dependency of the project; in an environment of its own:

    pip install sentencepiece
    python tests/data/make_sentencepiece.py
"""

from __future__ import annotations

import base64
import json
from io import BytesIO
from pathlib import Path

import sentencepiece

CORPUS = [
    "the pit crew had less than three seconds, and a slow stop would cost the race",
    "def stop(crew):\n    return [tyre for tyre in crew if tyre.worn > 0.5]",
    "人工智能 是一门科学。今天天气很好，比赛很快。",
    "Naïve café, 1234567890 of them; über-schnell!",
] * 5
TEXTS = [
    "",
    " ",
    "   ",
    "the crew",
    " the  crew ",
    "\n",
    "\n\n\nthe\n\n race\n",
    "    return x\n        y",
    "a<think>the</think> race",
    "<think>",
    "<think> <think>the",
    "the race      <think>",
    "[BOS]the crew[EOS][PAD]<|separator|>[UNK]",
    "<0x0A> <0xFF>",
    "人工智能",
    "今天天气很好,世界 🏁 你好",
    "👩‍👩‍👧‍👦 🏳️‍🌈",
    "é e\u0301 ﬁ ２ Ⅷ ½",
    "▁the▁▁crew",
    "a\u0000b\tc\r\nd\u00a0e\u3000f\u200bg\ufeffh",
    "3.14159, 1,000,000 x²",
    "مرحبا שלום ไทย",
    "x" + " " * 50 + "y",
    "crewcrewcrew thethethe seconds" * 3,
    "\ufffd \U0010ffff",
]


def trained(add_space: bool) -> bytes:
    """BPE with a token for each byte on text as it is, special tokens as Grok-1's."""
    model = BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(CORPUS),
        model_writer=model,
        model_type="bpe",
        vocab_size=420,
        byte_fallback=True,
        split_digits=True,
        normalization_rule_name="identity",
        remove_extra_whitespaces=False,
        add_dummy_prefix=add_space,
        pad_id=0,
        bos_id=1,
        eos_id=2,
        unk_id=3,
        pad_piece="[PAD]",
        bos_piece="[BOS]",
        eos_piece="[EOS]",
        unk_piece="[UNK]",
        control_symbols=["<|separator|>"],
        user_defined_symbols=["<think>", "▁▁▁▁", "\n\n"],
        minloglevel=2,
    )
    return model.getvalue()


def encoded(model: bytes) -> dict[str, object]:
    processor = sentencepiece.SentencePieceProcessor(model_proto=model)
    ids = [processor.encode(text) for text in TEXTS]
    return {"model": base64.b64encode(model).decode(), "ids": ids, "decoded": [processor.decode(one) for one in ids]}


if __name__ == "__main__":
    models = {"with a space in front": encoded(trained(True)), "as it is": encoded(trained(False))}
    made = {"library": f"sentencepiece {sentencepiece.__version__}", "texts": TEXTS, "models": models}
    Path(__file__).with_name("sentencepiece.json").write_text(json.dumps(made, ensure_ascii=False) + "\n", "utf-8")
