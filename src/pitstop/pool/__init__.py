"""Workers seen from the front: spawn, supervise, route, journal. Rung 5; imports no torch."""

from pitstop.pool.adapters import read_adapter
from pitstop.pool.gauges import Gauges, Observer
from pitstop.pool.member import Member
from pitstop.pool.pool import Pool
from pitstop.pool.stream import Delta, Stream, TokenScore
from pitstop.pool.texts import Opened, Served, Texts, read_model
from pitstop.pool.upgrade import Upgrade, Upgrades, Wish
from pitstop.pool.worker import Process, spawn

__all__ = [
    "Delta",
    "Gauges",
    "Member",
    "Observer",
    "Opened",
    "Pool",
    "Process",
    "Served",
    "Stream",
    "Texts",
    "TokenScore",
    "Upgrade",
    "Upgrades",
    "Wish",
    "read_adapter",
    "read_model",
    "spawn",
]
