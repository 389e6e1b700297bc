"""Does the server count answer tokens as tokens? Every figure in tokens a second rests on its word."""

from __future__ import annotations

from collections.abc import Iterable

from pitstop.verify.load.probe import Abilities
from pitstop.verify.load.records import Record
from pitstop.verify.outcome import Check

RETOKENISED = 20
"""Answers whose text is tokenised again."""
TOLERANCE = 0.25
"""How far that may lie from the count: a text has other tokenisations than the one that was generated."""


def check_tokens(abilities: Abilities, records: list[Record]) -> Check:
    """Usage against max_tokens, the pieces that came, the log-probabilities of a probe, and the text tokenised again."""
    whole = [record for record in records if not record.error]
    reasons = [*_usage(whole), *_scored(abilities.scored), *_retokenised(abilities, whole)]
    if reasons:
        return Check(name="load.tokens", passed=False, reason="; ".join(reasons))
    total = sum(record.answer_tokens or 0 for record in whole)
    return Check(name="load.tokens", passed=True, reason=f"the server's count of {total} answer tokens agrees with all that can be checked")


def _usage(whole: list[Record]) -> Iterable[str]:
    if silent := sum(record.answer_tokens is None or record.prompt_tokens is None for record in whole):
        yield f"{silent} of {len(whole)} answers came without usage, though stream_options.include_usage asks for it"
    counted = [record for record in whole if record.answer_tokens is not None]
    cut = [record for record in counted if record.finish == "length" and record.answer_tokens != record.max_tokens]
    if cut:
        yield (
            f'{len(cut)} answers ended with finish_reason "length" at max_tokens {cut[0].max_tokens}, but usage counts '
            f"{cut[0].answer_tokens} tokens: chunks are no tokens"
        )
    if longer := [record for record in counted if record.answer_tokens > record.max_tokens]:
        yield f"{len(longer)} answers count more than max_tokens: {longer[0].answer_tokens} of {longer[0].max_tokens}"
    if split := [record for record in counted if len(record.pieces) > record.answer_tokens]:
        yield f"{len(split)} answers came in more pieces than tokens: {len(split[0].pieces)} pieces, usage {split[0].answer_tokens}"


def _scored(scored: Record | None) -> Iterable[str]:
    if scored is None or scored.answer_tokens is None:
        return
    ending = scored.finish == "stop"  # an end token is counted by some and shown by some
    if abs(scored.logprobs - scored.answer_tokens) > ending:
        yield f"an answer with {scored.logprobs} log-probabilities counts {scored.answer_tokens} tokens"


def _retokenised(abilities: Abilities, whole: list[Record]) -> Iterable[str]:
    if abilities.tokens is None:
        return
    sample = [record for record in whole if record.answer_tokens and record.text.strip()][:RETOKENISED]
    counted = sum(record.answer_tokens for record in sample)
    found = sum(abilities.tokens(record.text) for record in sample)
    if abs(found - counted) > TOLERANCE * counted + len(sample):
        yield f"the texts of {len(sample)} answers have {found} tokens by /tokenize, usage counts {counted}"
