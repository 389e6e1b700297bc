"""`python -m pitstop.cli`, the same as `pitstop`."""

from __future__ import annotations

from pitstop.cli import main

main()
