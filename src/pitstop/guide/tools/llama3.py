"""Calls as Llama 3.1 to 3.3 write them: the answer is one JSON object with "name" and "parameters", sometimes after <|python_tag|>."""

from __future__ import annotations

from pitstop.guide.tools.format import Format

LLAMA3 = Format(
    name="llama3",
    opening="<|python_tag|>",
    bare=True,
    after={";": True},
    suffix='", "parameters": ',
    several=False,
    spellings=("<|python_tag|>",),
    marks=("<|start_header_id|>", '"name"', '"parameters"'),
)
