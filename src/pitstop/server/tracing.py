"""OpenTelemetry traces, after each request from its record: nothing is done while it runs. Needs the extra `otel`.

Exporter, endpoint, headers, service name, sampler and batching are what the standard OTEL_* variables say. Attributes follow
OpenTelemetry's semantic conventions for generative AI.
"""

from __future__ import annotations

import os
import time
from typing import TYPE_CHECKING, Any

from pitstop.errors import ConfigError, how_to_install
from pitstop.server.record import Record

if TYPE_CHECKING:
    from opentelemetry.sdk.trace.export import SpanProcessor

TRACE_HEADERS = ("traceparent", "tracestate", "baggage", "b3", "x-b3-traceid", "x-b3-spanid", "x-b3-sampled")

_OPERATIONS = {
    "/v1/chat/completions": "chat",
    "/v1/responses": "chat",
    "/v1/messages": "chat",
    "/v1/completions": "text_completion",
    "/v1/embeddings": "embeddings",
}
_STAGES = (
    ("encode", "encoding", "queued"),
    ("queue", "queued", "admitted"),
    ("prefill", "admitted", "first_token"),
    ("decode", "first_token", "last_token"),
)


class Tracing:
    """Makes spans of records: one a request that generates or embeds, with a child for each stage that it came to."""

    def __init__(self, processor: SpanProcessor | None = None) -> None:
        """processor: where spans go; by default, by OTLP over HTTP in batches. Raises ConfigError when the extra is not installed."""
        try:
            from opentelemetry import propagate, trace
            from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
            from opentelemetry.sdk.resources import Resource
            from opentelemetry.sdk.trace import TracerProvider
            from opentelemetry.sdk.trace.export import BatchSpanProcessor
        except ImportError:
            raise ConfigError(f"--otel needs OpenTelemetry's SDK: {how_to_install('otel')}") from None
        name = {} if os.environ.get("OTEL_SERVICE_NAME") else {"service.name": "pitstop"}
        self._provider = TracerProvider(resource=Resource.create(name))
        self._provider.add_span_processor(processor or BatchSpanProcessor(OTLPSpanExporter()))
        self._tracer = self._provider.get_tracer("pitstop")
        self._trace, self._extract = trace, propagate.extract
        self._epoch = time.time_ns() - time.monotonic_ns()

    def export(self, record: Record) -> None:
        """Hand an ended request's spans to the processor."""
        if record.route not in _OPERATIONS:
            return
        operation = _OPERATIONS[record.route]
        span = self._tracer.start_span(
            f"{operation} {record.model}" if record.model else operation,
            self._extract(record.headers),
            self._trace.SpanKind.SERVER,
            attributes=_attributes(record, operation),
            start_time=self._at(record.began),
        )
        if record.status >= 500 or (record.error and record.status == 200):
            span.set_status(self._trace.StatusCode.ERROR, record.error or "")
        inside = self._trace.set_span_in_context(span)
        for name, start, end in _STAGES:
            begin = getattr(record, start)
            if begin is not None:
                stop = getattr(record, end)
                child = self._tracer.start_span(name, inside, start_time=self._at(begin))
                child.end(self._at(stop if stop is not None else record.ended))
        span.end(self._at(record.ended))

    def close(self) -> None:
        """Send what is left. May take seconds."""
        self._provider.shutdown()

    def _at(self, monotonic: float | None) -> int:
        return self._epoch + round((monotonic or 0.0) * 1e9)


def _attributes(record: Record, operation: str) -> dict[str, Any]:
    found: dict[str, Any] = {
        "gen_ai.operation.name": operation,
        "gen_ai.provider.name": "pitstop",
        "http.request.method": record.method,
        "http.route": record.route,
        "http.response.status_code": record.status,
        "pitstop.request.id": record.id,
        "gen_ai.request.model": record.model,
        "gen_ai.response.model": record.model,
        "gen_ai.response.id": record.answer,
        "gen_ai.response.finish_reasons": record.finish or None,
        "gen_ai.usage.input_tokens": record.prompt_tokens,
        "gen_ai.usage.output_tokens": record.completion_tokens if record.model else None,
        "gen_ai.usage.cache_read.input_tokens": record.cached_tokens if record.model else None,
        "error.type": record.error,
    }
    if record.first_token is not None:
        found["gen_ai.response.time_to_first_chunk"] = record.first_token - record.began
    if record.params is not None:
        params = record.params
        found |= {
            "gen_ai.request.max_tokens": params.max_tokens,
            "gen_ai.request.temperature": params.temperature,
            "gen_ai.request.top_p": params.top_p,
            "gen_ai.request.top_k": float(params.top_k) if params.top_k > 0 else None,
            "gen_ai.request.seed": params.seed,
            "gen_ai.request.frequency_penalty": params.frequency_penalty,
            "gen_ai.request.presence_penalty": params.presence_penalty,
            "gen_ai.request.choice.count": record.choices if record.choices != 1 else None,
            "gen_ai.request.stop_sequences": list(params.stop) or None,
            "gen_ai.request.stream": record.stream,
        }
    return {name: value for name, value in found.items() if value is not None}
