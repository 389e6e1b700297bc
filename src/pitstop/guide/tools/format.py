"""A format of calls, as data: what the parser looks for, and what the grammar spells."""

from __future__ import annotations

import re
import secrets
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from pitstop.errors import InvalidRequest
from pitstop.guide.grammar import HEAD, json_text, literal
from pitstop.guide.schema import Schema, checked

Cut = Callable[[str], Iterable[int | str]]
"""A text cut at the spellings of control tokens: ids, and the strings between them."""

_TOOLS = re.compile(r"\btools\b")
_NO_PARAMETERS = {"type": "object", "properties": {}, "additionalProperties": False}


@dataclass(frozen=True, slots=True)
class Function:
    """A function that the model may call. parameters: a JSON schema of an object, None for no parameters."""

    name: str
    description: str | None = None
    parameters: Mapping[str, Any] | None = None
    strict: bool = False

    def for_template(self) -> dict[str, Any]:
        """As chat templates expect it in `tools`."""
        words = {"description": self.description} if self.description is not None else {}
        parameters = {"type": "object", "properties": {}} if self.parameters is None else dict(self.parameters)
        return {"type": "function", "function": {"name": self.name, **words, "parameters": parameters}}

    def schema(self, field: str = "parameters") -> Schema:
        """Of the arguments, for a grammar. field: that of `parameters`, for errors.

        Raises InvalidRequest where the schema of a strict function cannot be enforced; of another, any object is fine then.
        """
        try:
            return checked({"type": "object", **(_NO_PARAMETERS if self.parameters is None else self.parameters)}, field)
        except InvalidRequest:
            if self.strict:
                raise
            return {"type": "object"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Format:
    """How a family of models writes calls: a JSON object with "name" and "arguments" (or "parameters"), and marks around it.

    For the parser:
    opening: the mark before calls. bare: an answer may begin with a call that has no mark. array: after the mark, calls may be the items of
    a list. named: after the mark, a call may be its name and its arguments alone. after: what may stand after a call, and whether another
    call must follow it.

    For the grammar: calls are `begin`, then each call as `prefix` NAME `suffix` ARGUMENTS `tail`, `between` two of them, then `end`.
    several: whether an answer may hold more than one.

    spellings: marks that are control tokens in some vocabularies. marks: all of them stand in the chat templates of such models, and none
    of `foreign`. id_length: of a call's id, which is letters and digits only; 0: as OpenAI's.
    """

    name: str
    opening: str = ""
    bare: bool = False
    array: bool = False
    named: bool = False
    after: Mapping[str, bool] = field(default_factory=dict)
    begin: str = ""
    prefix: str = '{"name": "'
    suffix: str = '", "arguments": '
    tail: str = "}"
    between: str = "\n"
    end: str = ""
    several: bool = True
    spellings: tuple[str, ...] = ()
    marks: tuple[str, ...] = ()
    foreign: tuple[str, ...] = ()
    id_length: int = 0

    def is_in(self, template: str) -> bool:
        """Whether a chat template takes tools and has its model call them in this format."""
        knows = _TOOLS.search(template) and self.marks and all(mark in template for mark in self.marks)
        return bool(knows) and not any(mark in template for mark in self.foreign)

    def new_id(self) -> str:
        return secrets.token_hex(self.id_length)[: self.id_length] if self.id_length else f"call_{secrets.token_hex(12)}"

    def shown(self, cut: Cut) -> tuple[int, ...]:
        """Ids of the control tokens whose spelling the parser must see."""
        return tuple(piece for spelling in self.spellings for piece in cut(spelling) if isinstance(piece, int))

    def grammar(self, functions: list[Function], forced: bool, several: bool, cut: Cut) -> str:
        """As `pitstop.guide.grammar` has it. forced: the whole answer is calls; else any text, in which a mark begins calls only.

        several: more than one call is fine, where the format has that.
        """
        opening = "" if forced or self.bare else self.opening
        control = any(isinstance(piece, int) for piece in cut(opening)) if opening else False
        dropped = len(opening) if opening and not control else 0  # the rule `lead` has it
        begin, prefix = (self.begin[dropped:], self.prefix) if self.begin else ("", self.prefix[dropped:])

        def spell(text: str) -> str:
            return " ".join(f"<[{piece}]>" if isinstance(piece, int) else literal(piece) for piece in cut(text))

        rules = []
        for number, function in enumerate(functions):
            rules.append(f"call_{number}: {spell(prefix + function.name + self.suffix)} arguments_{number} {spell(self.tail)}")
            rules.append(f"arguments_{number}: {json_text(function.schema())}")
        rules.append("call: " + " | ".join(f"call_{number}" for number in range(len(functions))))
        more = several and self.several
        lasting = more and (forced or self.begin)
        rules.append(f"calls: {spell(begin)} call {f'({spell(self.between)} call)*' if lasting else ''} {spell(self.end)}")
        if forced:
            rules.append("start: calls")
        elif self.bare:
            rules += ["start: TEXT | calls", r"TEXT: /[^{\s](.|\n)*/"]
        elif control:
            rules += [f"start: TEXT {'(calls TEXT)*' if more else 'calls?'}", r"TEXT: /(.|\n)*/"]
        else:
            rules += [f"start: {'(lead calls)* TEXT' if more else 'lead calls | TEXT'}", r"TEXT: /(.|\n)*/"]
            rules.append(f"lead[lazy]: TEXT {literal(opening)}")
        return HEAD + "".join(f"{rule}\n" for rule in rules)
