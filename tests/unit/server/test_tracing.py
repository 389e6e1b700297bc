"""OpenTelemetry spans: with an exporter in memory, and over the wire as the OTEL_* variables say."""

from __future__ import annotations

import asyncio
import itertools
import subprocess
import sys
from http.server import BaseHTTPRequestHandler, HTTPServer
from threading import Thread

import httpx
import pytest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import SpanKind, StatusCode
from pools import running_pool
from servers import fake_server

from pitstop.config import ServerConfig
from pitstop.errors import ConfigError
from pitstop.server import Service, create_app
from pitstop.server.tracing import Tracing

TRACE, PARENT = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"


def spans_of(path: str, body: dict, headers: dict[str, str] | None = None) -> list[ReadableSpan]:
    """The spans of one request, in the order they began."""
    exporter = InMemorySpanExporter()

    async def ask() -> None:
        service = Service(ServerConfig("toy", otel=True))
        service.tracing = Tracing(SimpleSpanProcessor(exporter))
        async with running_pool() as pool:
            service.open(pool)
            async with httpx.AsyncClient(transport=httpx.ASGITransport(create_app(service)), base_url="http://x") as client:
                await client.post(path, json={"model": "toy"} | body, headers=headers)

    asyncio.run(ask())
    return sorted(exporter.get_finished_spans(), key=lambda span: (span.start_time, -span.end_time))


def test_a_request_is_a_span_with_its_stages():
    body = {"prompt": "#slow 5##say four#", "max_tokens": 20, "temperature": 0.5, "seed": 7, "stop": ["zz"], "stream": True}
    whole, *stages = spans_of("/v1/completions", body, {"traceparent": f"00-{TRACE}-{PARENT}-01"})
    assert (whole.name, whole.kind, whole.status.status_code) == ("text_completion toy", SpanKind.SERVER, StatusCode.UNSET)
    assert (f"{whole.context.trace_id:032x}", f"{whole.parent.span_id:016x}") == (TRACE, PARENT)
    expected = {
        "gen_ai.operation.name": "text_completion",
        "gen_ai.provider.name": "pitstop",
        "gen_ai.request.model": "toy",
        "gen_ai.response.model": "toy",
        "gen_ai.request.max_tokens": 20,
        "gen_ai.request.temperature": 0.5,
        "gen_ai.request.seed": 7,
        "gen_ai.request.stop_sequences": ("zz",),
        "gen_ai.request.stream": True,
        "gen_ai.response.finish_reasons": ("stop",),
        "gen_ai.usage.input_tokens": len(body["prompt"]),
        "gen_ai.usage.output_tokens": 5,
        "gen_ai.usage.cache_read.input_tokens": 3,
        "http.response.status_code": 200,
    }
    assert {name: whole.attributes[name] for name in expected} == expected
    assert whole.attributes["gen_ai.response.id"].startswith("cmpl-")
    assert not any("four" in str(value) for value in whole.attributes.values())  # no prompt
    assert [stage.name for stage in stages] == ["encode", "queue", "prefill", "decode"]
    assert all(stage.parent.span_id == whole.context.span_id for stage in stages)
    assert all(before.end_time == after.start_time for before, after in itertools.pairwise(stages))
    assert whole.start_time <= stages[0].start_time <= stages[-1].end_time <= whole.end_time
    assert stages[-1].end_time - stages[-1].start_time > 15e6  # four times 5 ms, in nanoseconds


def test_a_failure_is_an_error_with_its_type():
    whole, *stages = spans_of("/v1/chat/completions", {"messages": [{"role": "user", "content": "#fail 2#"}]})
    assert (whole.name, whole.status.status_code, whole.attributes["error.type"]) == ("chat toy", StatusCode.ERROR, "engine_error")
    assert [stage.name for stage in stages] == ["encode", "queue", "prefill", "decode"]
    whole, *stages = spans_of("/v1/chat/completions", {"messages": [{"role": "user", "content": "x"}], "temperature": -1})
    assert (whole.attributes["http.response.status_code"], whole.status.status_code) == (400, StatusCode.UNSET)
    assert [stage.name for stage in stages] == ["encode"]


def test_probes_and_scrapes_are_not_traced():
    assert spans_of("/livez", {}) == []


def test_spans_go_where_the_standard_variables_say():
    received: list[ExportTraceServiceRequest] = []

    class Collector(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            received.append(ExportTraceServiceRequest.FromString(self.rfile.read(int(self.headers["Content-Length"]))))
            self.send_response(200)
            self.end_headers()

        def log_message(self, *arguments: object) -> None: ...

    collector = HTTPServer(("127.0.0.1", 0), Collector)
    Thread(target=collector.serve_forever, daemon=True).start()
    env = {"OTEL_EXPORTER_OTLP_ENDPOINT": f"http://127.0.0.1:{collector.server_port}", "OTEL_SERVICE_NAME": "the-service"}
    env |= {"OTEL_EXPORTER_OTLP_COMPRESSION": "none"}
    with fake_server("--otel", env=env) as server:
        assert server.complete("#say hi#").status_code == 200
    collector.shutdown()
    collector.server_close()
    (resource,) = received[0].resource_spans  # what was left was sent when the server stopped
    assert ("service.name", "the-service") in {(item.key, item.value.string_value) for item in resource.resource.attributes}
    assert {span.name for scope in resource.scope_spans for span in scope.spans} >= {"text_completion toy", "decode"}


def test_nothing_is_imported_when_it_is_off():
    program = """
import sys
import pitstop.server
from pitstop.config import ServerConfig
pitstop.server.create_app(pitstop.server.Service(ServerConfig("toy")))
assert not [name for name in sys.modules if name.startswith(("opentelemetry.sdk", "opentelemetry.exporter"))]  # FastAPI loads the API
"""
    subprocess.run([sys.executable, "-c", program], check=True, timeout=60)


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/v1/chat/completions", {"messages": [{"role": "user", "content": "say four"}], "max_tokens": 5}),
        ("/v1/responses", {"input": "say four", "max_output_tokens": 5}),
        ("/v1/messages", {"messages": [{"role": "user", "content": "say four"}], "max_tokens": 5}),
    ],
)
def test_each_way_to_chat_has_a_span(path: str, body: dict):
    whole, *stages = spans_of(path, body)
    assert (whole.name, whole.attributes["http.route"], whole.attributes["http.response.status_code"]) == ("chat toy", path, 200)
    assert whole.attributes["gen_ai.usage.output_tokens"] > 0
    assert [stage.name for stage in stages] == ["encode", "queue", "prefill", "decode"]


def test_without_the_extra_it_is_refused(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setitem(sys.modules, "opentelemetry.sdk.trace", None)
    with pytest.raises(ConfigError, match=r"pip install -e '.\[otel\]'"):
        Tracing()
