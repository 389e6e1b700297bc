"""The HTTP front: OpenAI schema, app, streaming, health, metrics. Rung 6; imports no torch."""

from pitstop.server.app import create_app
from pitstop.server.run import run
from pitstop.server.service import Service

__all__ = ["Service", "create_app", "run"]
