"""The body of the step loop, around whatever computes a plan."""

from __future__ import annotations

import time
from typing import Any, NamedTuple

from pitstop.engine import pace
from pitstop.engine.recorder import RecordedSpan, Recorder
from pitstop.engine.scheduler import Scheduler
from pitstop.types import Output, Span, StepPlan, StepResult


class Flight(NamedTuple):
    """A step that was launched and not waited for yet."""

    plan: StepPlan
    running: Any  # the engine's own
    work: float
    number: int  # the recorder's


class StepLoop:
    """What engines have in common: a scheduler of requests, and steps that are planned, launched, waited for and settled.

    Where the next step follows from what runs (Scheduler.follow), it is launched before that is waited for: a GPU goes on while the host
    settles, and tells the front.
    """

    def __init__(self, scheduler: Scheduler, attended_cost: float) -> None:
        """attended_cost: see engine.pace."""
        self.scheduler = scheduler
        self.attended_cost = attended_cost
        self.recorder: Recorder | None = None
        self.work = 0.0
        """Of the latest step, in units of engine.pace; 0 when it had nothing to run."""
        self._flight: Flight | None = None

    @property
    def busy(self) -> bool:
        return self.scheduler.busy or self._flight is not None

    def cancel(self, request_id: str) -> Output | None:
        """End a request now; None when it is unknown or has ended."""
        return self.scheduler.cancel(request_id)

    def lend(self, size: int) -> int:
        """Give `size` bytes of the KV cache to the machine, all in all, or what nobody uses; 0: have all again. Returns how many it has."""
        return 0

    def step(self) -> list[Output]:
        """Expire what is late, then compute one step. While all that is here is held, wait a moment for that."""
        outputs = self.scheduler.expire(time.monotonic())
        stalled = self.scheduler.stalled  # asked before the plan: it may end at any time
        flight, self._flight = self._flight or self._begin(self.scheduler.plan()), None
        self.work = 0.0
        if flight is not None:
            self.work = flight.work
            if following := self._follow(flight.plan, flight.running):
                self._flight = self._begin(following, flight)
            self.scheduler.drop_ended(flight.plan)
            result = self._finish(flight.plan, flight.running)
            if self.recorder is not None:
                self.recorder.done(flight.number)
            outputs += self.scheduler.settle(flight.plan, result)
        elif stalled:
            self._hold()
        elif self.busy:
            raise RuntimeError("requests wait but nothing can be planned: the cache is too small for its own context")
        return outputs

    def ahead(self) -> float:
        """The work of the next step at most, unless something new is submitted."""
        return pace.total(self.scheduler.outlook(), self.attended_cost) if self.busy else 0.0

    def _begin(self, plan: StepPlan, before: Flight | None = None) -> Flight | None:
        """Record the plan and launch it."""
        if not plan.spans:
            return None
        work = pace.total(((span.start, span.count) for span in plan.spans), self.attended_cost)
        number = self.recorder.begin(map(_recorded, plan.spans)) if self.recorder is not None else 0
        return Flight(plan, self._launch(plan, before and before.running), work, number)

    def _launch(self, plan: StepPlan, before: Any = None) -> Any:
        """Begin to compute the plan, after a step that it follows. Returns what runs."""
        raise NotImplementedError

    def _follow(self, plan: StepPlan, running: Any) -> StepPlan | None:
        """The step after this one, where it can be launched already."""
        return None

    def _finish(self, plan: StepPlan, running: Any) -> StepResult:
        """Wait for what runs."""
        raise NotImplementedError

    def _hold(self) -> None:
        """Wait a moment for what the scheduler holds requests for."""
        raise NotImplementedError


def _recorded(span: Span) -> RecordedSpan:
    """Before its last row all its tokens are known: that one may be chosen by a step that still runs."""
    known = max(len(span.known), span.start + span.count - len(span.guess))
    return RecordedSpan(span.request.id, span.start, span.count, known)
