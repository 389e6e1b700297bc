"""From a conversation, by whichever API it came, to engine requests: a chat request is what the others are translated to."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import NamedTuple

from pydantic import ValidationError

from pitstop.errors import InvalidRequest
from pitstop.pool import Pool, Served
from pitstop.server.body import invalid
from pitstop.server.generation import answer_budget, check_places, draw_seed, engine_requests
from pitstop.server.schema import ChatRequest
from pitstop.server.service import Service
from pitstop.server.tools import Voice, render
from pitstop.types import Request


class Conversation(NamedTuple):
    """Engine requests, and a voice for each of their answers."""

    requests: list[Request]
    voices: list[Voice]


def converse(service: Service, pool: Pool, served: Served, chat: ChatRequest, answer_id: str, arrival: float) -> Conversation:
    """Check everything, render the template. Raises InvalidRequest or ModelNotFound."""
    service.check_model(chat.model)
    longest = service.config.request_timeout
    chat.check_generation(service.config.max_choices, longest)
    check_places(1, chat, pool)
    wanted, logprobs = chat.wanted_tokens(), chat.wanted_logprobs()
    prompt, tooling = render(chat, served.texts)
    max_tokens = answer_budget(len(prompt), wanted, None, served.facts.context, "messages")
    params = chat.sampling(draw_seed(), max_tokens, logprobs, grammar=tooling.grammar)
    params.check_vocabulary(served.facts.vocab_size)
    requests = engine_requests(answer_id, [prompt], [params], chat, arrival, longest, tooling.shown)
    return Conversation(requests, [Voice(tooling) for _ in requests])


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
            field = ".".join(filter(None, (names.get(part, part) for part in field.split("."))))
            error.args = (str(error).replace(error.field, field),)
            error.field = field
        raise error from None
