"""How far is model B from model A? Distributions over texts, answers to a small test, answers in a chat. Rung 7; speaks HTTP only."""

from pitstop.verify.quality.plan import Plan
from pitstop.verify.quality.tier import run

__all__ = ["Plan", "run"]
