"""Workers seen from the front: spawn, supervise, route, journal. Rung 5; imports no torch."""

from pitstop.pool.pool import Gauges, Observer, Pool
from pitstop.pool.stream import Delta, Stream, TokenScore
from pitstop.pool.worker import Process, spawn

__all__ = ["Delta", "Gauges", "Observer", "Pool", "Process", "Stream", "TokenScore", "spawn"]
