"""Defines the options of a process of a supervisor, and the messages between both."""

import os
from collections.abc import Callable
from contextlib import suppress

import msgspec
from msgspec.structs import replace

from natsctl.daemon.settings.settings import HttpSettings, Settings
from natsctl.errors import DECODE_ERRORS, UsageError


class Loaded(msgspec.Struct, frozen=True, tag=True):
    """The process has loaded its controllers."""


class Running(msgspec.Struct, frozen=True, tag=True):
    """Every controller of the process takes part in the work."""


class ChildFailed(msgspec.Struct, frozen=True, tag=True):
    """The process ends with this exit status because of an error.

    `texts` are the error as a command writes it to standard error.
    """

    status: int
    texts: tuple[str, ...] = ()


class PeerEnded(msgspec.Struct, frozen=True, tag=True):
    """Another process of the supervisor has ended; `identity` was its name as a member."""

    identity: str


Report = Loaded | Running | ChildFailed

OnReport = Callable[[Report], None]
"""Receives a report, or sends it."""


class ChildOptions(msgspec.Struct, frozen=True):
    """The options of one process of a supervisor.

    Attributes:
        number: the number of the process, from 1.
        socket: the path of the Unix socket on which it serves probes and metrics; empty if it
            serves none.
        reports: the file descriptor of the pipe for its reports.
        private: whether the servers are a private nats-server, for which only timeouts apply.
        identity: its unique name as a member.
        peers: the names of all members that the supervisor runs.
    """

    number: int
    socket: str
    reports: int
    private: bool = False
    identity: str = ""
    peers: tuple[str, ...] = ()

    def text(self) -> str:
        """Return these options as the argument of a command."""
        return msgspec.json.encode(self).decode()

    @classmethod
    def parse(cls, text: str) -> "ChildOptions":
        """Return the options in the argument of a command; raises `UsageError`."""
        try:
            return msgspec.json.decode(text, type=cls)
        except DECODE_ERRORS as error:
            raise UsageError(f"--child is only for natsctl itself: {error}") from error

    def applied(self, settings: Settings) -> Settings:
        """Return the settings of the process: it shares keys, and the supervisor does the rest."""
        return replace(
            settings,
            controllers=replace(settings.controllers, shard=True, processes=1),
            logs=replace(settings.logs, format="json"),
            http=HttpSettings(),
        )


class ReportPipe:
    """Sends reports to the supervisor; a supervisor that has ended gets none.

    Processes that handlers start do not inherit the pipe.
    """

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        os.set_inheritable(descriptor, False)

    def send(self, report: Report) -> None:
        """Send a report."""
        with suppress(OSError):
            os.write(self._descriptor, msgspec.json.encode(report) + b"\n")
