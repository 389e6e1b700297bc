"""Chat messages to token ids, by the model's own Jinja template. Control tokens inside what users wrote stay plain text."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Callable, Iterator
from datetime import datetime
from typing import Any

import jinja2
from jinja2 import nodes
from jinja2.ext import Extension, loopcontrols
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment

from pitstop.errors import InvalidRequest, TemplateRefused, Unsupported
from pitstop.text.tokenizer import Tokenizer

MAX_RENDERED = 32 << 20
"""Characters that a template may produce."""

MAX_SECONDS = 2.0
"""Processor time that a template may take."""

MAX_DEPTH = 64
"""Nesting of lists and objects in messages and variables."""

_NO_TEMPLATE = "this model has no chat template; send a prompt to /v1/completions instead"
_NONCHARACTERS = [chr(code) for code in range(0xFDD0, 0xFDF0)]
_ANY_NONCHARACTER = re.compile("[\ufdd0-\ufdef]")


class ChatTemplate:
    """A chat template, run as Hugging Face runs it (trim_blocks, lstrip_blocks, loop controls, `raise_exception`, `tojson`,
    `strftime_now`, `{% generation %}`, `bos_token`, `eos_token`), in Jinja's immutable sandbox and within bounds of size and time.

    The template is the model's, the messages are anybody's. So that a message cannot speak as a turn mark, every spelling of a control
    token in user strings is broken by a sentinel, a noncharacter that nobody used; the rendered text is cut at the control tokens that
    are left, which the template itself wrote; then the sentinels go. A spelling that several user strings form together is broken as well.
    """

    def __init__(self, source: str | None, tokenizer: Tokenizer) -> None:
        """Raises `Unsupported` for a template that does not parse. Without a template (None or ""), `render` refuses."""
        self.source = source or ""
        self._tokenizer = tokenizer
        self._breaker = _Breaker(tokenizer)
        self._specials = {
            "bos_token": _spelling(tokenizer, tokenizer.bos),
            "eos_token": _spelling(tokenizer, tokenizer.eos),
        }
        try:
            self._template = _environment().from_string(self.source) if source else None
        except jinja2.TemplateSyntaxError as error:
            raise Unsupported(f"the model's chat template does not parse (line {error.lineno}): {error.message}") from error

    def render(self, messages: list[dict[str, Any]], add_generation_prompt: bool = True, **variables: Any) -> list[int]:
        """Token ids of the conversation; with `add_generation_prompt`, up to where the assistant's turn begins.

        `variables` (tools, documents, …) are passed to the template and count as written by the user.
        Raises `TemplateRefused` when the template does not take the messages, with its own words where it has any, and
        `InvalidRequest` for a missing template, lone surrogates, or nesting deeper than `MAX_DEPTH`.
        """
        if self._template is None:
            raise InvalidRequest(_NO_TEMPLATE, "messages")
        sentinel = self._free_sentinel({"messages": messages, **variables})
        # Templates ask `tools is not none`, so both must be there.
        wanted = {"tools": None, "documents": None, **variables, "messages": messages}
        context = _map_strings(wanted, lambda text: self._breaker.apply(text, sentinel))
        context |= self._specials | {"add_generation_prompt": add_generation_prompt, _TICK: _deadline(MAX_SECONDS)}
        text = self._run(context, sentinel)
        ids: list[int] = []
        for piece in self._tokenizer.split_control(text):
            ids += [piece] if isinstance(piece, int) else self._tokenizer.encode(piece.replace(sentinel, ""), inside=bool(ids))
        return ids

    def _free_sentinel(self, value: Any) -> str:
        used = {char for text in (self.source, *_strings(value)) for char in _ANY_NONCHARACTER.findall(text)}
        free = next((char for char in _NONCHARACTERS if char not in used), None)
        if free is None:
            raise InvalidRequest(
                "the messages use all 32 noncharacters U+FDD0 to U+FDEF, one of which is needed; leave one out", "messages"
            )
        return free

    def _run(self, context: dict[str, Any], sentinel: str) -> str:
        parts: list[str] = []
        size = 0
        try:
            for part in self._template.generate(context):
                size += len(part)
                if size > MAX_RENDERED:
                    raise _Refusal(f"the model's chat template produces more than {MAX_RENDERED} characters")
                parts.append(part)
        except _Refusal as error:
            raise TemplateRefused(_one_line(str(error).replace(sentinel, "")), "messages") from None
        except jinja2.TemplateError as error:
            words = _one_line((error.message or type(error).__name__).replace(sentinel, ""))
            raise TemplateRefused(f"the model's chat template does not take these messages: {words}", "messages") from None
        except Exception:
            # Whatever a template does to values of a kind it did not expect: the words would be Python's, not the model's.
            message = "the model's chat template does not take these messages: a role or content is missing or of the wrong kind"
            raise TemplateRefused(message, "messages") from None
        return "".join(parts)


class _Refusal(Exception):
    """Carries words for the user out of a template."""


class _Breaker:
    """Breaks control tokens' spellings by a sentinel after the first character.

    A string that ends in the beginning of a spelling gets the sentinel at its end, before trailing space that a template may trim:
    the next string could complete it.
    """

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._pattern = tokenizer.control_pattern
        self._beginnings = {text[:size] for text in tokenizer.control_spellings for size in range(1, len(text))}
        self._longest = max(map(len, self._beginnings), default=0)

    def apply(self, text: str, sentinel: str) -> str:
        parts: list[str] = []
        start = 0
        while self._pattern and (match := self._pattern.search(text, start)):
            # Only the first character is passed over: spellings may overlap.
            parts += (text[start : match.start() + 1], sentinel)
            start = match.start() + 1
        text = "".join((*parts, text[start:])) if parts else text
        stem = text.rstrip()
        if any(stem[-size:] in self._beginnings for size in range(1, min(self._longest, len(stem)) + 1)):
            return stem + sentinel + text[len(stem) :]
        return text


def _spelling(tokenizer: Tokenizer, token: int | None) -> str:
    return "" if token is None else tokenizer.token_bytes(token).decode()


def _one_line(text: str) -> str:
    return " ".join(text.split())[:500]


def _strings(value: Any) -> Iterator[str]:
    """Every string in nested lists and dicts, keys included. Raises `InvalidRequest` beyond `MAX_DEPTH`."""
    level = [value]
    for _ in range(MAX_DEPTH):
        inner: list[Any] = []
        for item in level:
            if isinstance(item, str):
                yield item
            elif isinstance(item, dict):
                inner += item.keys()
                inner += item.values()
            elif isinstance(item, list | tuple):
                inner += item
        if not inner:
            return
        level = inner
    raise InvalidRequest(f"messages and template variables nest at most {MAX_DEPTH} deep", "messages")


def _map_strings(value: Any, change: Callable[[str], str]) -> Any:
    """A copy with every string changed, keys included: a template may print keys, and none looks one up that has a control token in it."""
    if isinstance(value, str):
        return change(value)
    if isinstance(value, dict):
        return {_map_strings(key, change): _map_strings(item, change) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_map_strings(item, change) for item in value]
    return value


_TICK = "_pitstop_tick"


def _deadline(seconds: float) -> Callable[[], None]:
    """A check that raises once this thread has computed for `seconds` more; neighbours' work does not count."""
    end = time.thread_time() + seconds

    def tick() -> None:
        if time.thread_time() > end:
            raise _Refusal(f"the model's chat template takes more than {seconds:g} s for these messages")

    return tick


class _BoundedEnvironment(ImmutableSandboxedEnvironment):
    """Checks the time at every turn of a loop and every call of a macro."""

    def _generate(self, source: nodes.Template, *args: Any, **kwargs: Any) -> str:
        for node in source.find_all((nodes.For, nodes.Macro)):
            node.body.insert(0, nodes.ExprStmt(nodes.Call(nodes.Name(_TICK, "load"), [], [], None, None), lineno=node.lineno))
        return super()._generate(source, *args, **kwargs)


class _Generation(Extension):
    """`{% generation %}…{% endgeneration %}`, which marks what the model wrote, for training; here it only stands for its body."""

    tags = {"generation"}  # noqa: RUF012

    def parse(self, parser: Parser) -> list[nodes.Node]:
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


def _environment() -> _BoundedEnvironment:
    environment = _BoundedEnvironment(trim_blocks=True, lstrip_blocks=True, extensions=[loopcontrols, _Generation])
    environment.filters["tojson"] = _tojson
    environment.globals["raise_exception"] = _raise_exception
    environment.globals["strftime_now"] = lambda form: datetime.now().strftime(form)
    return environment


def _tojson(value: Any, ensure_ascii: bool = False, indent: int | None = None, separators: Any = None, sort_keys: bool = False) -> str:
    """Unlike Jinja's own, without HTML escapes."""
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


def _raise_exception(message: str) -> None:
    raise _Refusal(message)
