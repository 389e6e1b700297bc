"""One of the two servers: its tokens, and its log-probabilities in whichever way it gives them."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import Any, Literal, NamedTuple

import httpx
import numpy as np

from pitstop.errors import TargetError
from pitstop.verify.target import Target

TIMEOUT = 600.0
TOPS = (20, 5)
"""Likeliest tokens to ask for: OpenAI's chat limit and its completions limit."""

PROBES = 6
"""Tokens of the prompt on which abilities are tried."""

Ability = Literal["rows", "echo", "next", "none"]
"""What a server gives: all logits of a prompt (/admin/score), its tokens' log-probabilities and likeliest ones (echo), those of the next
token only, or nothing. Each can do what comes after it."""

ABILITIES: tuple[Ability, ...] = ("rows", "echo", "next", "none")

_HEADER = struct.Struct("<8s6I")  # magic, version, vocabulary, rows, start, number type (1: fp32), kind (1: raw logits)


class Position(NamedTuple):
    """What is known of the distribution at one position: natural-log probabilities by the tokens' bytes; `came` is the real token's."""

    top: dict[bytes, float]
    came: float | None = None


class Side:
    """A server under comparison. A context manager."""

    def __init__(self, name: str, target: Target, admin_key: str = "") -> None:
        """name: A or B, for messages. admin_key: of /admin/score; by default the target's key."""
        self.name = name
        self.target = target
        self._client = target.client(TIMEOUT)
        self._admin = {"Authorization": f"Bearer {admin_key}"} if admin_key else {}
        self._pieces: dict[int, bytes] = {}
        self.top = TOPS[0]
        self.ability: Ability = "none"

    def __enter__(self) -> Side:
        return self

    def __exit__(self, *exception: object) -> None:
        self._client.close()

    def ask(self, path: str, body: dict[str, Any]) -> httpx.Response:
        """Whatever the status. Raises TargetError when the server does not answer."""
        try:
            return self._client.post(path, json=body)
        except httpx.HTTPError as error:
            raise self._error(f"{path} does not answer: {error or type(error).__name__}") from None

    def tokens(self, text: str) -> list[int]:
        """Token ids of a prompt, by /tokenize in Pitstop's and vLLM's form or in llama.cpp's. Raises TargetError."""
        for body in ({"model": self.target.model, "prompt": text}, {"content": text, "add_special": True}):
            answer = self.ask("/tokenize", body)
            if answer.status_code == 200:
                ids = self._json(answer, "/tokenize").get("tokens")
                if isinstance(ids, list) and ids and all(type(token) is int for token in ids):
                    return ids
        raise self._error(f"/tokenize gives no token ids (status {answer.status_code})")

    def piece(self, token: int) -> bytes | None:
        """A token's text, by /detokenize; None when it is no whole text, or not to be had."""
        if token not in self._pieces:
            found = b""
            for body, field in (({"model": self.target.model, "tokens": [token]}, "prompt"), ({"tokens": [token]}, "content")):
                answer = self.ask("/detokenize", body)
                if answer.status_code == 200 and isinstance(text := self._json(answer, "/detokenize").get(field), str):
                    found = b"" if "�" in text else text.encode()
                    break
            self._pieces[token] = found
        return self._pieces[token] or None

    def find_ability(self, tokens: list[int]) -> Ability:
        """Try what it gives on a short prompt. Raises TargetError for a server that has /admin/score but does not let us in."""
        self.ability = self._try((tokens * PROBES)[:PROBES])
        return self.ability

    def _try(self, tokens: list[int]) -> Ability:
        answer = self._score(tokens, 0)
        if answer.status_code in (401, 403):
            raise self._error("/admin/score needs a key: set PITSTOP_VERIFY_ADMIN_KEY")
        if answer.status_code == 200:
            self.rows(tokens, 0)  # raises when it is not what it says
            return "rows"
        for self.top in TOPS:
            answer = self.ask("/v1/completions", self._echo(tokens))
            if answer.status_code == 200 and self._positions(answer, len(tokens)) is not None:
                return "echo"
        for self.top in TOPS:
            for length in range(1, len(tokens) + 1):  # several: an unfinished character may have no log-probabilities
                answer = self.ask("/v1/completions", self._next(tokens[:length]))
                if answer.status_code == 200 and self._first(answer) is not None:
                    return "next"
        return "none"

    def rows(self, tokens: list[int], start: int) -> np.ndarray:
        """Logits at the positions from `start` on, [len(tokens) - start, vocab] fp32, by /admin/score. Raises TargetError."""
        answer = self._score(tokens, start)
        if answer.status_code != 200:
            raise self._error(f"/admin/score answered {answer.status_code}: {answer.text[:300]}")
        data = answer.content
        if len(data) < _HEADER.size:
            raise self._error(f"/admin/score answered {len(data)} bytes, less than its header has")
        magic, version, vocabulary, count, first, number, kind = _HEADER.unpack_from(data)
        if (magic, version, number, kind) != (b"PITSCORE", 1, 1, 1):
            raise self._error("/admin/score speaks a format that is not known here")
        if (count, first) != (len(tokens) - start, start) or len(data) != _HEADER.size + 4 * count * vocabulary:
            raise self._error(f"/admin/score answered {count} rows from {first} in {len(data)} bytes: not what was asked for")
        return np.frombuffer(data, "<f4", offset=_HEADER.size).reshape(count, vocabulary)

    def echoed(self, tokens: list[int]) -> list[Position]:
        """What predicted the prompt's tokens 1, 2, …, by echo. Raises TargetError."""
        answer = self.ask("/v1/completions", self._echo(tokens))
        found = self._positions(answer, len(tokens)) if answer.status_code == 200 else None
        if found is None:
            raise self._error(f"echo with logprobs answered {answer.status_code}: {answer.text[:300]}")
        return found

    def following(self, tokens: list[int]) -> Position | None:
        """What predicts the token after the prompt. None when this answer names no tokens: llama.cpp's server does not name those of an
        unfinished character. Raises TargetError."""
        answer = self.ask("/v1/completions", self._next(tokens))
        if answer.status_code != 200:
            raise self._error(f"/v1/completions with logprobs answered {answer.status_code}: {answer.text[:300]}")
        return self._first(answer)

    def chat(self, prompt: str, max_tokens: int) -> tuple[str, bool]:
        """(the answer at temperature 0, whether it was cut at max_tokens). Raises TargetError."""
        body = {"model": self.target.model, "messages": [{"role": "user", "content": prompt}], "max_tokens": max_tokens, "temperature": 0}
        answer = self.ask("/v1/chat/completions", body)
        try:
            choice = self._json(answer, "/v1/chat/completions")["choices"][0]
            return str(choice["message"]["content"] or ""), choice["finish_reason"] == "length"
        except (KeyError, IndexError, TypeError):
            raise self._error(f"/v1/chat/completions answered {answer.status_code}: {answer.text[:300]}") from None

    def _score(self, tokens: list[int], start: int) -> httpx.Response:
        try:
            return self._client.post("/admin/score", json={"prompt": tokens, "start": start}, headers=self._admin)
        except httpx.HTTPError as error:
            raise self._error(f"/admin/score: {error or type(error).__name__}") from None

    def _echo(self, tokens: list[int]) -> dict[str, Any]:
        return self._next(tokens) | {"max_tokens": 0, "echo": True}

    def _next(self, tokens: list[int]) -> dict[str, Any]:
        return {"model": self.target.model, "prompt": tokens, "max_tokens": 1, "temperature": 0, "logprobs": self.top}

    def _positions(self, answer: httpx.Response, length: int) -> list[Position] | None:
        """None when the answer does not score the prompt of `length` tokens."""
        try:
            scores = self._json(answer, "/v1/completions")["choices"][0]["logprobs"]
            came, tops = scores["token_logprobs"], scores["top_logprobs"]
            if len(came) < length or len(tops) < length:
                return None
            pairs = zip(came[1:length], tops[1:length], strict=True)
            return [Position(_top(top), float(logprob)) for logprob, top in pairs]
        except (KeyError, IndexError, TypeError, ValueError):
            return None

    def _first(self, answer: httpx.Response) -> Position | None:
        """None when the answer has no likeliest tokens for its first token."""
        try:
            scores = self._json(answer, "/v1/completions")["choices"][0]["logprobs"]
            top = scores["content"][0]["top_logprobs"] if "content" in scores else scores["top_logprobs"][0]
            return Position(_top(top)) if top else None
        except (KeyError, IndexError, TypeError, ValueError):
            return None

    def _json(self, answer: httpx.Response, path: str) -> dict[str, Any]:
        try:
            found = answer.json()
        except ValueError:
            found = None
        if not isinstance(found, dict):
            raise self._error(f"{path} answered {answer.status_code}, and no JSON object")
        return found

    def _error(self, message: str) -> TargetError:
        return TargetError(f"{self.name} ({self.target.url}): {message}")


def _top(given: dict[str, float] | list[dict[str, Any]]) -> dict[bytes, float]:
    """By bytes, from OpenAI's older form (text → log-probability) or its newer one (objects). What has no certain bytes is left out."""
    if isinstance(given, dict):
        pairs: Iterator[tuple[bytes | None, float]] = ((_spelled(text), logprob) for text, logprob in given.items())
    else:
        pairs = ((bytes(one["bytes"]) if one.get("bytes") else _spelled(one["token"]), one["logprob"]) for one in given)
    return {piece: float(logprob) for piece, logprob in pairs if piece}


def _spelled(text: str) -> bytes | None:
    r"""The bytes of a token's text; "bytes:\xf0\x9f" is how OpenAI writes those that are no text."""
    if text.startswith("bytes:\\x"):
        return bytes.fromhex(text.removeprefix("bytes:").replace("\\x", ""))
    return None if "�" in text else text.encode()
