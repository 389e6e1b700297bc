"""What a run leaves: report.html for people, report.json for machines, junit.xml for build servers. All from one `outcome.Report`."""

from pitstop.verify.report.files import assemble, join, read, write

__all__ = ["assemble", "join", "read", "write"]
