"""Hours at a set load, with aborts and bad inputs mixed in: does anything grow, linger, restart or drift?"""

from pitstop.verify.soak.plan import Plan
from pitstop.verify.soak.tier import Progress, resume, run

__all__ = ["Plan", "Progress", "resume", "run"]
