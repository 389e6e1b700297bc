"""CASES 1–20 and 25 as HTTP tests of a fixture `server` (servers.Server). They run against the fake worker (tests/unit/server) and,
unchanged, against the default model (tests/e2e). The number of the case is in every name.
"""
