"""From an answer's text to its words and its calls, while it comes."""

from __future__ import annotations

import json
import re
from collections.abc import Collection
from typing import NamedTuple

from pitstop.guide.tools.format import Format
from pitstop.guide.tools.scanner import Scanner

LONGEST_NAME = 256
"""Characters between a mark and the arguments, in the formats that write a name there."""

_HEAD = re.compile(r'\{\s*"name"\s*:\s*"([^"\\]+)"\s*,\s*"(?:arguments|parameters)"\s*:\s*\{')
_NAME = re.compile(r"([\w.-]+)\s*(?:\[CALL_ID\]\s*\w+\s*)?(?:\[ARGS\]\s*)?")
_OF_NAME = re.compile(r"[\w.\-\[\]\s]")


class Words(NamedTuple):
    """Content."""

    text: str


class Begun(NamedTuple):
    """A call begins. index: among the answer's calls, from 0."""

    index: int
    name: str


class Arguments(NamedTuple):
    """A part of a call's arguments; the parts joined are its JSON."""

    index: int
    text: str


Event = Words | Begun | Arguments


class CallParser:
    """The calls in one answer. The events joined do not depend on how the text is cut into pushes.

    A call begins when its name has come, is that of a function that there is, and an object follows; from then on its arguments are handed
    on as they come. They are the model's own text, but for control characters inside of strings, which are escaped as JSON wants it. Where
    name and arguments stand otherwise (in another order, after other members, arguments in a string) the object is read when it is whole.

    Marks are no content, nor is white space at an answer's edges beside calls. What looks like a call and is none (no JSON, an unknown
    function, an end in its midst) is content to the letter, marks included. What is no JSON any more after a call has begun ends the call,
    whose arguments are then broken for everyone to see, and is content itself.
    """

    def __init__(self, format: Format, names: Collection[str]) -> None:
        """names: those of the functions."""
        self._format = format
        self._names = frozenset(names)
        self.calls = 0
        """Calls that have begun."""
        self._events: list[Event] = []
        self._parts: list[str] = []  # of the event that is being made: of the newest call's arguments while `_calling`, else words
        self._calling = False
        self._spoken = False
        self._space = ""  # white space that is content if words follow
        self._kept = ""  # what of it came before the newest call
        self._held = ""  # in text and after calls: the beginning of a mark, perhaps
        self._marks = ""  # marks before a call that has not begun
        self._head: list[str] = []  # of such a call
        self._looked = False  # whether the head was compared with the usual one
        self._listed = False
        self._floor = 0  # depth at which the arguments are whole
        self._scanner = Scanner()
        self._state = self._before_call if format.bare else self._in_text

    @property
    def calling(self) -> bool:
        """Whether a call has begun whose arguments are not whole."""
        return self._calling

    def push(self, text: str) -> list[Event]:
        """What more text brings."""
        for char in text:
            self._state(char)
        return self._flush()

    def finish(self) -> list[Event]:
        """No more text will come: what was held back."""
        for char in self._marks + "".join(self._head) + self._held:
            self._say(char)
        if self._space and not self.calls:
            self._speak(self._space)
        self._marks = self._held = self._space = ""
        self._head = []
        return self._flush()

    # States, each of which takes a character

    def _in_text(self, char: str) -> None:
        held, opening = self._held + char, self._format.opening
        if held == opening:
            self._held = ""
            self._expect_call(opening)
            return
        while held and not opening.startswith(held):
            self._say(held[0])
            held = held[1:]
        self._held = held

    def _before_call(self, char: str) -> None:
        if char.isspace():
            self._marks += char
        elif char == "[" and self._format.array and not self._listed:
            self._listed = True
            self._marks += char
        elif char == "{":
            self._scanner = Scanner()
            self._scanner.take(char)
            self._head, self._looked, self._state = [char], False, self._in_head
        elif self._format.named and self._marks.rstrip() == self._format.opening and _OF_NAME.match(char):
            self._head, self._state = [char], self._in_name
        else:
            self._give_back(char)

    def _in_head(self, char: str) -> None:
        if not self._scanner.take(char):
            self._give_back(char)
            return
        self._head.append(char)
        if self._scanner.depth == 0:
            self._read_whole()
        elif self._scanner.depth == 2 and not self._looked:
            self._looked = True
            if usual := _HEAD.fullmatch("".join(self._head)):
                self._begin(usual[1], 1)

    def _in_name(self, char: str) -> None:
        if char == "{":
            found = _NAME.fullmatch("".join(self._head))
            self._head.append(char)
            self._scanner = Scanner()
            self._scanner.take(char)
            self._begin(found[1] if found else "", 0)
        elif _OF_NAME.match(char) and len(self._head) < LONGEST_NAME:
            self._head.append(char)
        else:
            self._give_back(char)

    def _in_arguments(self, char: str) -> None:
        raw = self._scanner.in_string and char < " "
        if not self._scanner.take(char):
            self._end()
            self._state = self._after_call
            self._state(char)
            return
        self._parts.append(json.dumps(char)[1:-1] if raw else char)
        if self._scanner.depth == self._floor:
            self._end()
            self._state = self._in_tail if self._floor else self._after_call

    def _in_tail(self, char: str) -> None:
        """Other members of a call, which nobody asked for."""
        fits = self._scanner.take(char)
        if not fits or self._scanner.depth == 0:
            self._state = self._after_call
        if not fits:
            self._state(char)

    def _after_call(self, char: str) -> None:
        held, after = self._held + char, self._format.after
        if not self._held and char.isspace():
            self._say(char)
        elif held in after:
            self._held, self._space = "", self._kept
            if after[held]:
                self._expect_call(held)
            else:
                self._listed, self._state = False, self._in_text
        elif any(mark.startswith(held) for mark in after):
            self._held = held
        elif self._format.bare and held == "{":
            self._expect_call("")
            self._state(char)
        else:
            self._held, self._listed, self._state = "", False, self._in_text
            for each in held:
                self._state(each)

    # What they do

    def _expect_call(self, marks: str) -> None:
        self._marks, self._state = marks, self._before_call

    def _give_back(self, char: str = "") -> None:
        """No call: what was held is content, and so is what comes, from `char` on."""
        text, self._marks, self._head = self._marks + "".join(self._head), "", []
        self._listed, self._state = False, self._in_text
        for each in text:
            self._say(each)
        if char:
            self._state(char)

    def _read_whole(self) -> None:
        call = _read("".join(self._head))
        if call is None or call[0] not in self._names:
            self._give_back()
            return
        self._begin(call[0], 0)
        self._parts = [call[1]]
        self._end()
        self._state = self._after_call

    def _begin(self, name: str, floor: int) -> None:
        """A call, if it is one, whose arguments have begun with a bracket and are whole at depth `floor`."""
        if name not in self._names:
            self._give_back()
            return
        self._cut()
        self._events.append(Begun(self.calls, name))
        self.calls += 1
        self._calling, self._parts, self._kept = True, ["{"], self._space
        self._marks, self._head, self._floor, self._state = "", [], floor, self._in_arguments

    def _end(self) -> None:
        self._cut()
        self._calling = False

    def _say(self, char: str) -> None:
        if char.isspace():
            self._space += char
            return
        space, self._space = self._space, ""
        self._speak((space if self._spoken or not self.calls else "") + char)

    def _speak(self, text: str) -> None:
        self._spoken = True
        self._parts.append(text)

    def _cut(self) -> None:
        """The parts so far become an event."""
        if text := "".join(self._parts):
            self._events.append(Arguments(self.calls - 1, text) if self._calling else Words(text))
        self._parts = []

    def _flush(self) -> list[Event]:
        """The events so far, which are forgotten."""
        self._cut()
        events, self._events = self._events, []
        return events


def _read(text: str) -> tuple[str, str] | None:
    """Name and arguments of a call in whatever order; None for what is none."""
    try:
        call = json.loads(text, strict=False)
        if isinstance(call.get("function"), dict):
            call = call["function"]
        arguments = call.get("arguments", call.get("parameters", {}))
        if isinstance(arguments, str):
            arguments = json.loads(arguments, strict=False)
    except (ValueError, RecursionError):
        return None
    name = call.get("name")
    if not isinstance(name, str) or not isinstance(arguments, dict):
        return None
    written = json.dumps(arguments, ensure_ascii=False)
    return name, written if written.isascii() or not re.search("[\ud800-\udfff]", written) else json.dumps(arguments)
