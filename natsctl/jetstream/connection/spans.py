"""Tracing spans for operations on keys and calls of the JetStream API."""

from functools import partial

from natsctl.errors import NotFoundError
from natsctl.telemetry.tracing import Attributes, Span, call_span


def kv_span(operation: str, bucket: str, key: str) -> Span:
    """Return the span of an operation on a key: `get`, `create`, `update`, `delete`, `purge`.

    Source: OpenTelemetry's semantic conventions for database clients.
    """
    return call_span(partial(_operation, operation, bucket, key), expected=(NotFoundError,))


def api_span(endpoint: str) -> Span:
    """Return the span of a JetStream API call, for example `STREAM.INFO.KV_orders`.

    Source: OpenTelemetry's semantic conventions for RPC clients.
    """
    return call_span(partial(_call, endpoint), expected=(NotFoundError,))


def _operation(operation: str, bucket: str, key: str) -> tuple[str, Attributes]:
    return f"kv {operation} {bucket}", {
        "db.system.name": "nats",
        "db.operation.name": operation,
        "db.collection.name": bucket,
        "natsctl.kv.key": key,
    }


def _call(endpoint: str) -> tuple[str, Attributes]:
    verb = endpoint.partition(".KV_")[0]  # one name for all buckets
    facts = {"rpc.system": "nats", "rpc.service": "jetstream", "rpc.method": endpoint}
    return f"jetstream {verb}", facts
