"""What the functions of a request mean for its prompt, its sampling and its answer."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

from pitstop.errors import InvalidRequest
from pitstop.guide.tools import Arguments, CallParser, Format, Function, Words, fallback, format_of
from pitstop.pool import Delta, Texts
from pitstop.server.schema.chat import ChatRequest, Message, check_turns
from pitstop.server.schema.tools import FunctionChoice
from pitstop.types import FinishReason


class Call(NamedTuple):
    """A call begins. index: among the answer's calls, from 0."""

    index: int
    id: str
    name: str


Said = Words | Call | Arguments


class Voice:
    """What one choice of an answer says: words, and calls where functions may be called."""

    def __init__(self, tooling: Tooling | None = None) -> None:
        self._format = tooling.format if tooling is not None else None
        self._parser = CallParser(tooling.format, tooling.names) if tooling is not None and tooling.names else None

    def hear(self, delta: Delta) -> list[Said]:
        if self._parser is None:
            return [Words(delta.text)] if delta.text else []
        events = self._parser.push(delta.text)
        if delta.finish is not None:
            events += self._parser.finish()
        return [event if isinstance(event, Words | Arguments) else Call(event.index, self._format.new_id(), event.name) for event in events]

    def reason(self, finish: FinishReason) -> str:
        """Why the answer has ended: "tool_calls" when it ended by itself after calls that are whole."""
        called = self._parser is not None and self._parser.calls and not self._parser.calling
        return "tool_calls" if called and finish == "stop" else finish


@dataclass(frozen=True, slots=True)
class Tooling:
    """names: of the functions that may be called, none: nothing is looked for. grammar: of the answer, "": any.

    shown: control tokens whose spelling is part of the answer's text.
    """

    format: Format
    names: frozenset[str] = frozenset()
    grammar: str = ""
    shown: tuple[int, ...] = ()


def turns(messages: list[Message], texts: Texts) -> list[dict[str, Any]]:
    """Messages as the model's template takes them. Raises InvalidRequest."""
    check_turns(messages)
    for_template = [message.for_template() for message in messages]
    return for_template if format_of(texts.template.source) else fallback.flatten(for_template)


def render(chat: ChatRequest, texts: Texts) -> tuple[list[int], Tooling]:
    """The prompt's tokens, and what may be called. Raises InvalidRequest."""
    functions, choice = chat.defined_functions(), chat.tool_choice
    named = choice.function.name if isinstance(choice, FunctionChoice) else None
    forced = named is not None or choice == "required"
    callable = [] if choice == "none" else [function for function in functions if named in (None, function.name)]
    if forced and not callable:
        rule = "needs tools" if named is None else f"no function of tools is called {named!r}"
        raise InvalidRequest(f"tool_choice: {rule}", "tool_choice")
    messages, own, variables = turns(chat.messages, texts), format_of(texts.template.source), {}
    if callable and own:
        variables["tools"] = [function.for_template() for function in functions]
    elif callable:
        messages = fallback.instruct(messages, functions, forced, named)
    prompt = texts.template.render(messages, **variables)
    if not prompt:
        raise InvalidRequest("the model's template makes an empty prompt of these messages", "messages")
    several = chat.parallel_tool_calls is not False and named is None
    return prompt, _tooling(own or fallback.FALLBACK, callable, forced, several, texts)


def _tooling(format: Format, functions: list[Function], forced: bool, several: bool, texts: Texts) -> Tooling:
    """several: more than one call is fine. Raises InvalidRequest for functions that cannot be enforced."""
    cut = texts.tokenizer.split_control
    if not functions:
        return Tooling(format)
    constrained = forced or not several or any(function.strict for function in functions)
    grammar = format.grammar(functions, forced, several, cut) if constrained else ""
    if grammar:
        texts.guides.check(grammar, "tools")
    return Tooling(format, frozenset(function.name for function in functions), grammar, format.shown(cut))
