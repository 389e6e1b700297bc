"""Calls as Mistral's models write them: after [TOOL_CALLS] a JSON list of calls, since Mistral Small 3.2 each as NAME[ARGS]{…}."""

from __future__ import annotations

from dataclasses import replace

from pitstop.guide.tools.format import Format

MISTRAL = Format(
    name="mistral",
    opening="[TOOL_CALLS]",
    array=True,
    named=True,
    after={",": True, "]": False},
    begin="[TOOL_CALLS][",
    between=", ",
    end="]",
    spellings=("[TOOL_CALLS]", "[ARGS]", "[CALL_ID]"),
    marks=("[TOOL_CALLS]",),
    id_length=9,  # the templates refuse any other
)

MISTRAL_NAMED = replace(
    MISTRAL,
    name="mistral-named",
    begin="",
    prefix="[TOOL_CALLS]",
    suffix="[ARGS]",
    tail="",
    between="",
    end="",
    marks=("[TOOL_CALLS]", "[ARGS]"),
)
