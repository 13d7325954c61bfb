"""The messages with which a micro service describes itself.

Source: the micro protocol, ADR-32 of nats-architecture-and-design.
"""

import msgspec


class Ping(msgspec.Struct, frozen=True, kw_only=True):
    """The answer to a `PING`: the service runs."""

    type: str = "io.nats.micro.v1.ping_response"
    name: str
    id: str
    version: str
    metadata: dict[str, str] = {}


class EndpointInfo(msgspec.Struct, frozen=True):
    """An endpoint of a service; `queue_group` is empty if every instance gets each request."""

    name: str
    subject: str
    queue_group: str = ""
    metadata: dict[str, str] = {}


class Info(msgspec.Struct, frozen=True, kw_only=True):
    """The answer to an `INFO`: the description of a service and its endpoints."""

    type: str = "io.nats.micro.v1.info_response"
    name: str
    id: str
    version: str
    metadata: dict[str, str] = {}
    description: str = ""
    endpoints: list[EndpointInfo] = []


class EndpointStats(msgspec.Struct, frozen=True):
    """The requests to an endpoint since the start; times are nanoseconds."""

    name: str
    subject: str
    queue_group: str = ""
    num_requests: int = 0
    num_errors: int = 0
    last_error: str = ""
    processing_time: int = 0
    average_processing_time: int = 0


class Stats(msgspec.Struct, frozen=True, kw_only=True):
    """The answer to a `STATS`: the requests since `started` (RFC 3339)."""

    type: str = "io.nats.micro.v1.stats_response"
    name: str
    id: str
    version: str
    metadata: dict[str, str] = {}
    started: str
    endpoints: list[EndpointStats] = []
