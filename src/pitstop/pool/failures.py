"""Why requests end before they are complete, in words for the client."""

from __future__ import annotations

from pitstop.errors import DeadlineExceeded, InvalidRequest, PitstopError, Unavailable
from pitstop.pool.gauges import State
from pitstop.pool.stream import Delta

CUT_OFF = "The server stopped before the answer was complete; try again."
TIME_UP = "The request's time is up; ask for fewer tokens or raise `timeout`."
WHY: dict[State, str] = {
    "loading": "The model is still loading; try again shortly.",
    "restarting": "The worker died and is being restarted; try again shortly.",
    "draining": "The server is shutting down; try another one.",
    "stopped": "The server has stopped.",
}


def failure(delta: Delta) -> PitstopError:
    """Of a last delta that is no end of an answer."""
    if delta.finish == "timeout":
        return DeadlineExceeded(TIME_UP)
    if delta.finish == "cancelled":
        return Unavailable("The worker cancelled the request; try again.")
    if delta.refused:
        return InvalidRequest(delta.message)
    return PitstopError(delta.message or "The engine failed on this request.")
