"""What micro services say of themselves, on the wire.

Source: the micro protocol, ADR-32 of nats-architecture-and-design.
"""

import msgspec


class Ping(msgspec.Struct, frozen=True, kw_only=True):
    """That a service is there."""

    type: str = "io.nats.micro.v1.ping_response"
    name: str
    id: str
    version: str
    metadata: dict[str, str] = {}


class EndpointInfo(msgspec.Struct, frozen=True):
    """One thing that can be asked; `queue_group` is empty where every instance is asked."""

    name: str
    subject: str
    queue_group: str = ""
    metadata: dict[str, str] = {}


class Info(msgspec.Struct, frozen=True, kw_only=True):
    """What can be asked of a service."""

    type: str = "io.nats.micro.v1.info_response"
    name: str
    id: str
    version: str
    metadata: dict[str, str] = {}
    description: str = ""
    endpoints: list[EndpointInfo] = []


class EndpointStats(msgspec.Struct, frozen=True):
    """How often something was asked; times are nanoseconds."""

    name: str
    subject: str
    queue_group: str = ""
    num_requests: int = 0
    num_errors: int = 0
    last_error: str = ""
    processing_time: int = 0
    average_processing_time: int = 0


class Stats(msgspec.Struct, frozen=True, kw_only=True):
    """How often a service was asked since `started` (RFC 3339)."""

    type: str = "io.nats.micro.v1.stats_response"
    name: str
    id: str
    version: str
    metadata: dict[str, str] = {}
    started: str
    endpoints: list[EndpointStats] = []
