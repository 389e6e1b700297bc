"""A case as its YAML file has it; docs/verify-cases.md is its documentation. What is not of this form does not load."""

from __future__ import annotations

import fnmatch
from collections.abc import Iterable
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple

import msgspec

from pitstop.errors import ConfigError
from pitstop.verify.functional import path
from pitstop.verify.functional.answer import FIELDS
from pitstop.verify.functional.expect import check_verbs

CASES = Path(__file__).parent / "cases"

Text = Annotated[str, msgspec.Meta(min_length=1)]
Id = Annotated[str, msgspec.Meta(pattern=r"^[a-z0-9]+(-[a-z0-9]+)*$")]
Name = Annotated[str, msgspec.Meta(pattern="^([a-z][a-z_]*)?$")]
Count = Annotated[int, msgspec.Meta(ge=1)]

GIVEN = frozenset({"model", "context", "i", "n"})
"""Names that a template may use anywhere: n counts the turns of a `repeat`."""


class Request(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True, rename={"fields": "with"}):
    """One request, `times` over, and what is expected of each answer. Exactly one of chat, complete and send is given."""

    name: Name = ""
    chat: str | list[Any] | None = None  # a user's turn, or all messages
    complete: Any = None  # a prompt, of any kind
    send: str | None = None  # "POST /path"
    fields: dict[str, Any] = {}  # of the body, beside or instead of the defaults
    without: list[str] = []  # defaults that are left out
    body: Any = None  # send: JSON as it is
    raw: str | None = None  # send: the body's bytes, as characters U+0000 to U+00FF
    headers: dict[str, str] = {}
    stream: bool = False
    close_after: Count | None = None  # events of a stream
    times: Count = 1
    probe: bool = False  # what it expects is the sign of the optional feature; not met: unsupported
    expect: dict[str, Any] = {}

    def __post_init__(self) -> None:
        kinds = [self.chat is not None, self.complete is not None, self.send is not None]
        if sum(kinds) != 1:
            raise ValueError("a request has exactly one of chat, complete and send")
        if self.send is None and (self.body is not None or self.raw is not None):
            raise ValueError("body and raw go with send")
        if self.send is not None and (self.fields or self.without or self.stream or (self.body is not None and self.raw is not None)):
            raise ValueError("send takes body or raw, and nothing of with, without and stream")
        if self.close_after is not None and not self.stream:
            raise ValueError("close_after: only of a stream")
        for where, verbs in self.expect.items():
            if not path.is_path(where) or path.root(where) not in FIELDS:
                raise ValueError(f"expect: {where!r} is no path into an answer, which has {', '.join(sorted(FIELDS))}")
            check_verbs(where, verbs)


class Parallel(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Requests that are sent at once."""

    parallel: Annotated[list[Request], msgspec.Meta(min_length=1)]


class Step(NamedTuple):
    """Requests that are sent all at once, or one after another."""

    requests: list[Request]
    at_once: bool


class Case(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """What a correct server does, and how to see it."""

    id: Id
    title: Text
    what: Text
    why: Text
    steps: Annotated[list[dict[str, Any]], msgspec.Meta(min_length=1)]  # each a Request, or Parallel
    expect: dict[str, Any] = {}  # of all named answers together
    optional: list[Text] = []  # the feature's name, then other words by which an error may name it; none: required
    context: int = 0  # tokens that prompt and answer need
    needs: Literal["model"] | None = None  # does not hold of a scripted stand-in
    seconds: Annotated[float, msgspec.Meta(gt=0, le=600)] = 60.0
    theme: str = ""  # the file's

    @property
    def plan(self) -> list[Step]:
        """The steps. Raises msgspec.ValidationError for one that is not of the form."""
        return [
            Step(msgspec.convert(step, Parallel).parallel, True) if "parallel" in step else Step([msgspec.convert(step, Request)], False)
            for step in self.steps
        ]

    def check(self) -> None:
        """Raise ValueError where a template or a path speaks of an answer that is not there."""
        known: set[str] = set()
        if not self.optional and any(request.probe for requests, _ in self.plan for request in requests):
            raise ValueError("probe: only in a case of an optional feature")
        for requests, _ in self.plan:
            for request in requests:
                sent = [request.chat, request.complete, request.send, request.fields, request.body, request.raw, request.headers]
                _check_templates(sent, known | GIVEN)
                _check_templates(request.expect, known | GIVEN | {"this"})
            known |= {request.name for request in requests if request.name}
        _check_templates(self.expect, known | GIVEN)
        for where, verbs in self.expect.items():
            if not path.is_path(where) or path.root(where) not in known:
                raise ValueError(f"expect: {where!r} does not begin with the name of a request")
            check_verbs(where, verbs)


class CaseFile(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """One theme."""

    theme: Text
    about: Text
    cases: Annotated[list[Case], msgspec.Meta(min_length=1)]


def _check_templates(value: Any, known: Iterable[str]) -> None:
    for template in path.templates(value):
        if not path.is_path(template) or path.root(template) not in known:
            raise ValueError(f"${{{template}}} names none of {', '.join(sorted(known))}")


def load_cases(only: str | None = None, folder: Path = CASES) -> list[Case]:
    """All cases of a folder's files, or those whose id or theme matches the pattern `only`, as in a shell (without * ? [: contains it).

    Raises ConfigError that names the file and the case: not of the form, an id given twice, no case that matches.
    """
    cases: dict[str, Case] = {}
    for file in sorted(folder.glob("*.yaml")):
        for case in _read(file):
            if case.id in cases:
                raise ConfigError(f"{file}: the id {case.id} is given twice")
            cases[case.id] = case
    pattern = only if only is None or set(only) & set("*?[") else f"*{only}*"
    chosen = [case for case in cases.values() if pattern is None or _matches(case, pattern.lower())]
    if not chosen:
        raise ConfigError(f"no case matches {only!r}; `pitstop verify functional --list` lists all" if only else f"{folder} has no cases")
    return chosen


def _matches(case: Case, pattern: str) -> bool:
    return fnmatch.fnmatchcase(case.id, pattern) or fnmatch.fnmatchcase(case.theme.lower(), pattern)


def _read(file: Path) -> list[Case]:
    try:
        content = msgspec.yaml.decode(file.read_bytes(), type=CaseFile)
    except (msgspec.DecodeError, msgspec.ValidationError) as error:
        raise ConfigError(f"{file}: {error}") from None
    for case in content.cases:
        try:
            case.check()
        except (ValueError, msgspec.ValidationError) as error:
            raise ConfigError(f"{file}: {case.id}: {error}") from None
    return [msgspec.structs.replace(case, theme=content.theme) for case in content.cases]
