"""What a run leaves: report.html for people, report.json for machines, junit.xml for build servers. All from one `outcome.Report`."""

from pitstop.verify.report.files import JSON, JUNIT, assemble, join, read, write
from pitstop.verify.report.page import labels, render
from pitstop.verify.report.rows import limit_rows, why

__all__ = ["JSON", "JUNIT", "assemble", "join", "labels", "limit_rows", "read", "render", "why", "write"]
