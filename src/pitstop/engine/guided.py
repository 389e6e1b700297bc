"""The grammars of the requests in the engine: compiled on a thread while others run, then followed answer by answer. No torch."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor, wait

from pitstop.guide import Guide, Guides
from pitstop.types import Request, TokenTable

HOLD = 0.05
"""Seconds that the engine waits at a time when all that it has is being compiled."""


class Guided:
    """A grammar that cannot be compiled is found out by `of`; the door has compiled it before, so it cannot be a user's fault."""

    def __init__(self, table: Callable[[], TokenTable], vocab_size: int, live: int) -> None:
        """live: answers whose state is kept; that of another is made again from its tokens."""
        self._guides = Guides(table, vocab_size)
        self._live: OrderedDict[str, Guide] = OrderedDict()
        self._max_live = live
        self._compiling: dict[str, Future[Guide]] = {}
        self._thread = ThreadPoolExecutor(1, "grammar")

    def check(self, grammar: str, field: str) -> None:
        """Compile it now. Raises InvalidRequest, naming the field, for one that cannot be used."""
        self._guides.check(grammar, field)

    def begin(self, request: Request) -> None:
        """See that the request's grammar gets compiled."""
        grammar = request.params.grammar
        if grammar and grammar not in self._compiling and not self._guides.known(grammar):
            self._compiling[grammar] = future = self._thread.submit(self._guides.guide, grammar)
            future.add_done_callback(lambda _: self._compiling.pop(grammar, None))  # on the thread, whoever still waits

    def held(self, request: Request) -> bool:
        """Whether the request's grammar is being compiled."""
        return request.params.grammar in self._compiling

    def wait(self, seconds: float) -> None:
        """Until a grammar is compiled, but no longer than that."""
        wait(list(self._compiling.values()), seconds, "FIRST_COMPLETED")

    def of(self, request: Request) -> Guide:
        """What guides the request's answer. Raises InvalidRequest for a grammar that cannot be used."""
        guide = self._live.pop(request.id, None) or self._guides.guide(request.params.grammar)
        self._live[request.id] = guide
        if len(self._live) > self._max_live:
            self._live.popitem(last=False)
        return guide
