"""API keys: who may ask, and how much at once."""

from __future__ import annotations

import hmac
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager

from pitstop.errors import Overloaded
from pitstop.server.errors import Refused

_LONGEST = 60  # seconds: the largest Retry-After


def match(authorization: str, keys: tuple[str, ...], name: str) -> int:
    """Which of `keys`, called `name` in the error, an Authorization header bears. Raises Refused 401. Compares in constant time."""
    scheme, _, token = authorization.partition(" ")
    given = token.strip().encode("latin-1")  # the bytes as they came
    # All keys are compared, whichever matches: the time tells nothing.
    matches = [hmac.compare_digest(given, key.encode()) for key in keys]
    if scheme.lower() != "bearer" or not any(matches):
        message = f"send {name} of this server's in the header Authorization: Bearer KEY"
        raise Refused(401, message, "invalid_api_key", {"WWW-Authenticate": "Bearer"})
    return matches.index(True)


class Keys:
    """The keys of one server, and how many requests each has in flight. A key is named by its number, from 0."""

    def __init__(self, keys: tuple[str, ...], limit: int, rejected: Counter[str]) -> None:
        """limit: requests at once with one key, 0 for any number; rejected: where a refusal is counted, under "key"."""
        self._keys = keys
        self._limit = limit
        self._rejected = rejected
        self._in_flight: Counter[int] = Counter()
        self._duration = 1.0  # seconds that a request took, lately

    def identify(self, authorization: str) -> int:
        """Which key the header bears. Raises Refused 401 for none of ours."""
        return match(authorization, self._keys, "an API key")

    @contextmanager
    def slot(self, key: int) -> Iterator[None]:
        """One of the requests that the key may have in flight. Raises Overloaded."""
        if self._limit and self._in_flight[key] >= self._limit:
            self._rejected["key"] += 1
            seconds = min(_LONGEST, max(1, round(self._duration / self._limit)))
            raise Overloaded(f"your API key has {self._limit} requests in flight, which is its limit; try again in {seconds} s.", seconds)
        start = time.monotonic()
        self._in_flight[key] += 1
        try:
            yield
        finally:
            self._in_flight[key] -= 1
            self._duration += (time.monotonic() - start - self._duration) / 8
