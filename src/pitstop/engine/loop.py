"""The body of the step loop, around whatever computes a plan."""

from __future__ import annotations

import time

from pitstop.engine import pace
from pitstop.engine.recorder import RecordedSpan, Recorder
from pitstop.engine.scheduler import Scheduler
from pitstop.types import Output, StepPlan, StepResult


class StepLoop:
    """What engines have in common: a scheduler of requests, and steps that are planned, computed and settled."""

    def __init__(self, scheduler: Scheduler, attended_cost: float) -> None:
        """attended_cost: see engine.pace."""
        self.scheduler = scheduler
        self.attended_cost = attended_cost
        self.recorder: Recorder | None = None
        self.work = 0.0
        """Of the latest step, in units of engine.pace; 0 when it had nothing to run."""

    @property
    def busy(self) -> bool:
        return self.scheduler.busy

    def cancel(self, request_id: str) -> Output | None:
        """End a request now; None when it is unknown or has ended."""
        return self.scheduler.cancel(request_id)

    def step(self) -> list[Output]:
        """Expire what is late, then compute one step. While all that is here is held, wait a moment for that."""
        outputs = self.scheduler.expire(time.monotonic())
        stalled = self.scheduler.stalled  # asked before the plan: it may end at any time
        plan = self.scheduler.plan()
        self.work = 0.0
        if plan.spans:
            self.work = pace.total(((span.start, span.count) for span in plan.spans), self.attended_cost)
            if self.recorder is not None:
                self.recorder.begin(RecordedSpan(span.request.id, span.start, span.count, len(span.known)) for span in plan.spans)
            result = self._compute(plan)
            if self.recorder is not None:
                self.recorder.done()
            outputs += self.scheduler.settle(plan, result)
        elif stalled:
            self._hold()
        elif self.busy:
            raise RuntimeError("requests wait but nothing can be planned: the cache is too small for its own context")
        return outputs

    def ahead(self) -> float:
        """The work of the next step at most, unless something new is submitted."""
        return pace.total(self.scheduler.outlook(), self.attended_cost) if self.busy else 0.0

    def _compute(self, plan: StepPlan) -> StepResult:
        raise NotImplementedError

    def _hold(self) -> None:
        """Wait a moment for what the scheduler holds requests for."""
        raise NotImplementedError
