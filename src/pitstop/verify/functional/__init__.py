"""The functional tier: cases in data files, played against a server over HTTP. docs/verify-cases.md documents their form."""

from pitstop.verify.functional.case import Case, load_cases
from pitstop.verify.functional.run import Progress, Result, results_of, run, run_cases

__all__ = ["Case", "Progress", "Result", "load_cases", "results_of", "run", "run_cases"]
