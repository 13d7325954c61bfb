"""Answers of the terminal's views, without NATS and daemons."""

import asyncio

from natsctl.cli.top.answers import Answers, ControllerState, KeyState
from natsctl.console.actions import ActionReport, Request
from natsctl.console.answers import Problem
from natsctl.console.home import FailingKey, Failures, Home
from natsctl.console.statuses import Daemon, StatusRow
from natsctl.core.insight.explain import KeyPause
from natsctl.core.insight.lanes import Lanes, QueuedKey
from natsctl.core.insight.tree import Branch
from natsctl.daemon.api.activity import Activity
from natsctl.daemon.api.messages import DaemonProcess, KeyExplanation
from natsctl.jetstream.connection.connection import ConnectionState

PROCESS = DaemonProcess(id="1", host="h", pid=7, version="0.1.0", started="2026-01-01T00:00:00Z")
CONNECTED = ConnectionState(
    connected=True,
    server="nats://127.0.0.1:4222",
    losses=0,
    since_s=0.0,
    errors=0,
    last_error=None,
)
SHOPS = StatusRow(
    name="shops",
    daemons=[Daemon(id="1", name="h/7", answered=True, state="syncing", mode="leader")],
    state="syncing",
    mode="leader",
    keys=9,
    failing=2,
    invalid=1,
    paused=0,
    queued=3,
    held=1,
    waiting=2,
    oldest_unanswered_s=75.0,
    lanes=Lanes(held=[QueuedKey("slow", 40.0, "change")], waiting=[QueuedKey("bad", 8.0, "retry")]),
    activity=Activity([0, 4, 8], [0, 0, 2]),
)
FAILING = Failures(
    "ValueError: no luck", 2, [FailingKey("shops", "bad"), FailingKey("shops", "odd")]
)
KEYS = {
    "bad": ("failing", "ValueError: no luck"),
    "odd": ("invalid", "not a valid Shop"),
}


def home_of(
    *rows: StatusRow, failing: list[Failures] | None = None, no_daemon: bool = False
) -> Home:
    """Return the state of these controllers."""
    return Home(controllers=list(rows), failing=failing or [], no_daemon=no_daemon)


class FakeAnswers(Answers):
    """Answers with `overview` or `error`, and records the actions."""

    def __init__(self, overview: Home | None = None) -> None:
        self.overview = home_of(SHOPS, failing=[FAILING]) if overview is None else overview
        self.state = CONNECTED
        self.error: Exception | None = None
        self.refusal: Exception | None = None
        self.pause: KeyPause | None = None
        self.tree: Branch | Problem = Branch(
            kind="Shop.shops", key="bad", branches=(Branch(kind="Sign.signs", key="bad"),)
        )
        self.acts: list[tuple[str, Request]] = []
        self.takes_s = 0.0
        self.reads = 0

    def connection(self) -> ConnectionState:
        return self.state

    async def home(self) -> Home:
        self.reads += 1
        await asyncio.sleep(self.takes_s)
        if self.error is not None:
            raise self.error
        return self.overview

    async def controller(self, name: str) -> ControllerState:
        overview = await self.home()
        row = next((row for row in overview.controllers if row.name == name), None)
        return ControllerState(row, KEYS, no_daemon=overview.no_daemon)

    async def key(self, controller: str, key: str) -> KeyState:
        self.reads += 1
        if self.error is not None:
            raise self.error
        explanation = KeyExplanation(
            controller=controller, key=key, exists=True, paused=self.pause, daemon=PROCESS
        )
        return KeyState([explanation], self.tree)

    async def act(self, action: str, request: Request) -> ActionReport:
        if self.refusal is not None:
            raise self.refusal
        self.acts.append((action, request))
        return ActionReport(message=f"{action} done", warnings=[], recorded=True)
