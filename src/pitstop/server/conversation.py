"""From a conversation, by whichever API it came, to engine requests: a chat request is what the others are translated to."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import NamedTuple

from pydantic import ValidationError

from pitstop.errors import InvalidRequest
from pitstop.pool import Pool, Served
from pitstop.server.body import invalid
from pitstop.server.generation import answer_budget, check_places, draw_seed, engine_requests, form_of
from pitstop.server.schema import ChatRequest
from pitstop.server.service import Service
from pitstop.server.tools import Tooling, Voice, render
from pitstop.types import Request


class Conversation(NamedTuple):
    """Engine requests, and a voice for each of their answers."""

    requests: list[Request]
    voices: list[Voice]


def converse(service: Service, pool: Pool, served: Served, chat: ChatRequest, answer_id: str, arrival: float) -> Conversation:
    """Check everything, render the template. Raises InvalidRequest or ModelNotFound."""
    adapter = service.check_model(chat.model)
    longest = service.config.request_timeout
    chat.check_generation(service.config.max_choices, longest)
    check_places(1, chat, pool)
    wanted, logprobs = chat.wanted_tokens(), chat.wanted_logprobs()
    prompt, tooling = render(chat, served.texts)
    max_tokens = answer_budget(len(prompt), wanted, None, served.facts.context, "messages")
    params = chat.sampling(draw_seed(), max_tokens, logprobs, grammar=_form(chat, tooling, served))
    params.check_vocabulary(served.facts.vocab_size)
    requests = engine_requests(answer_id, [prompt], [params], chat, arrival, longest, tooling.shown, adapter)
    return Conversation(requests, [Voice(tooling) for _ in requests])


def _form(chat: ChatRequest, tooling: Tooling, served: Served) -> str:
    """The grammar of the answer. Raises InvalidRequest."""
    grammar = form_of(chat, served)
    if grammar and tooling.names:
        field = "response_format" if chat.response_format is not None else "structured_outputs"
        raise InvalidRequest(f"{field}: an answer that may be a call has a form already; leave it out, or send tool_choice: none", field)
    return grammar or tooling.grammar


@contextmanager
def in_words_of(names: Mapping[str, str], turns: Sequence[str] = ()) -> Iterator[None]:
    """Errors of a translated request name its own fields. names: from a chat request's, "" for none; turns: the field of each message."""
    try:
        yield
    except (InvalidRequest, ValidationError) as given:
        error = invalid(given) if isinstance(given, ValidationError) else given
        if error.field is not None:
            field = error.field
            for number, turn in enumerate(turns):
                field = field.replace(f"messages[{number}]", turn)
            parts = field.split(".")  # what is deeper is the caller's own
            field = ".".join(filter(None, [*(names.get(part, part) for part in parts[:3]), *parts[3:]]))
            error.args = (str(error).replace(error.field, field),)
            error.field = field
        raise error from None
