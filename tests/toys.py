"""Small stand-ins for tests that need no model file."""

from __future__ import annotations

from pitstop.text.tokenizer import BYTE_ALPHABET
from pitstop.text.vocabulary import TokenType, Vocabulary

CHAT_TEMPLATE = (
    "{% for message in messages %}{{ '<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>' + '\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)

TOOL_TEMPLATE = (
    "{% if tools %}{{ '<|im_start|>system\n' }}{% for tool in tools %}{{ tool | tojson + '\n' }}{% endfor %}"
    """{{ 'Call as <tool_call>{"name": …, "arguments": …}</tool_call><|im_end|>\n' }}{% endif %}"""
    "{% for message in messages %}{{ '<|im_start|>' + message.role + '\n' + message.content }}{% for call in message.tool_calls or [] %}"
    "{{ '<tool_call>' }}{{ call.function | tojson }}{{ '</tool_call>' }}{% endfor %}{{ '<|im_end|>' + '\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)

TOY_CONTROL = ("<|endoftext|>", "<|im_start|>", "<|im_end|>", "<|tool|>")
TOY_WORDS = ("<think>",)
TOY_MERGES = ("h e", "l l", "he ll", "hell o", "Ġ w", "o r", "Ġw or", "Ġwor l", "Ġworl d", "Ġ Ġ", "Ċ Ċ", "ð Ł", "ä ¸")


def toy_vocabulary(pre: str = "smollm", chat_template: str | None = CHAT_TEMPLATE, add_bos: bool = False) -> Vocabulary:
    """Byte-level BPE: ids 0–3 control tokens, 4 a user-defined word, 5–260 the bytes in order, then one token a merge."""
    merged = [merge.replace(" ", "") for merge in TOY_MERGES]
    normal = [*BYTE_ALPHABET, *merged]
    types = [TokenType.CONTROL] * len(TOY_CONTROL) + [TokenType.USER_DEFINED] * len(TOY_WORDS) + [TokenType.NORMAL] * len(normal)
    return Vocabulary(
        model="gpt2",
        pre=pre,
        tokens=[*TOY_CONTROL, *TOY_WORDS, *normal],
        types=[int(kind) for kind in types],
        merges=list(TOY_MERGES),
        bos=1,
        eos=2,
        add_bos=add_bos,
        chat_template=chat_template,
    )


def byte_tokens(data: bytes) -> list[int]:
    """The ids of single bytes in `toy_vocabulary`."""
    return [len(TOY_CONTROL) + len(TOY_WORDS) + byte for byte in data]
