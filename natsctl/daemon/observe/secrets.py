"""Which secrets the settings hold, and how a log line is kept free of any."""

import logging
from collections.abc import Iterator

from natsctl.jetstream.connection.options import NatsOptions
from natsctl.jetstream.connection.servers import secrets
from natsctl.kubernetes.access.options import KubeOptions
from natsctl.telemetry.escaping import escaped_lines
from natsctl.telemetry.hiding import MASK, TRACEBACK_MAX, Hider, hidden

__all__ = ["MASK", "Hider", "HidingFormatter", "secrets_of"]


class HidingFormatter(logging.Formatter):
    """Formats as its base, hides what looks like a secret, and escapes what controls a terminal."""

    def format(self, record: logging.LogRecord) -> str:
        """Return the line, and its traceback if it has one."""
        return escaped_lines(hidden(super().format(record), limit=TRACEBACK_MAX))


def secrets_of(nats: NatsOptions, cluster: KubeOptions | None = None) -> Iterator[str]:
    """Return the secrets in these options; raises `UsageError` where a URL is none."""
    yield from secrets(nats)
    if cluster is not None and cluster.token:
        yield cluster.token
