"""The cases, before a worker without a model."""

from __future__ import annotations

from cases.parameters import *  # noqa: F403
from cases.requests import *  # noqa: F403
from cases.structured import *  # noqa: F403
from cases.text import *  # noqa: F403
