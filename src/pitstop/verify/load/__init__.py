"""How fast is a server under load, from the client's side? Open-loop arrivals, every latency from the intended send time."""

from pitstop.verify.load.arrivals import Schedule
from pitstop.verify.load.mix import read_mix
from pitstop.verify.load.session import Plan
from pitstop.verify.load.tier import run, run_find_max

__all__ = ["Plan", "Schedule", "read_mix", "run", "run_find_max"]
