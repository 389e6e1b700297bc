"""Calls as Hermes 2 Pro and Qwen 2.5 and 3 write them: each a JSON object between <tool_call> and </tool_call>."""

from __future__ import annotations

from pitstop.guide.tools.format import Format

HERMES = Format(
    name="hermes",
    opening="<tool_call>",
    after={"</tool_call>": False},
    prefix='<tool_call>\n{"name": "',
    tail="}\n</tool_call>",
    spellings=("<tool_call>", "</tool_call>"),
    marks=("<tool_call>", '"arguments"'),
    foreign=("<function=", "<arg_key>"),  # the marks are the same, what is between them is not JSON
)
