"""The server against its own OpenAPI document."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import schemathesis
from hypothesis import HealthCheck, Phase, settings
from schemathesis.checks import not_a_server_error
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    negative_data_rejection,
    response_schema_conformance,
    status_code_conformance,
    unsupported_method,
)
from servers import Server

from pitstop.config import ServerConfig
from pitstop.server import Service, create_app

CHECKS = [
    not_a_server_error,
    status_code_conformance,
    content_type_conformance,
    response_schema_conformance,
    negative_data_rejection,
    unsupported_method,
]

schema = schemathesis.openapi.from_dict(create_app(Service(ServerConfig("toy", admin=True))).openapi())
for path in ("/admin/drain", "/admin/upgrade", "/admin/lora"):
    schema = schema.exclude(path=path, method="POST")  # they would be obeyed


@pytest.fixture(scope="module")
def base_url(server: Server) -> Iterator[str]:
    yield server.url
    assert server.alive()
    assert server.process.poll() is None


@schema.parametrize()
@settings(
    max_examples=25,
    deadline=None,
    derandomize=True,
    database=None,
    phases=[Phase.explicit, Phase.generate],
    suppress_health_check=list(HealthCheck),
)
def test_every_answer_is_one_that_is_declared(case: schemathesis.Case, base_url: str):
    if isinstance(case.body, dict) and isinstance(case.body.get("model"), str):
        case.body["model"] = "toy"  # any other is 404, and tells nothing more
    if isinstance(case.body, dict) and type(seconds := case.body.get("timeout")) in (int, float) and seconds > 0:
        case.body["timeout"] = 20  # 504 is the right answer to a nanosecond
    case.call_and_validate(base_url=base_url, checks=CHECKS, timeout=30)
