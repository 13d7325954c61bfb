"""Longer time limits for tests that are not about the limits.

A machine that runs many tests at once may stop any process for seconds.
"""

from functools import partial

import pytest

from natsctl import NatsOptions
from natsctl.daemon import client as daemon_client
from natsctl.jetstream import connection, feed
from natsctl.telemetry import outbox

WAIT_S = 20.0  # for an answer
SILENCE = 12  # missing heartbeats of a watch


def wait_patiently(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let natsctl wait longer for servers and daemons in this process.

    The options of a connection are changed only if the test names its server by a URL.
    """
    monkeypatch.setattr(daemon_client, "FIND_S", WAIT_S)
    monkeypatch.setattr(feed, "SILENCE", SILENCE)
    monkeypatch.setattr(outbox, "CLOSE_S", WAIT_S)
    patient_options = partial(
        NatsOptions, connect_timeout_s=WAIT_S, request_timeout_s=WAIT_S, silence_s=WAIT_S
    )
    monkeypatch.setattr(connection, "NatsOptions", patient_options)
