"""The permissions that the documentation gives suffice, and each of them is needed."""

import asyncio
import json
import re
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path

import pytest

from controllers.greetings import Greetings
from natsctl.core.task_group import together
from natsctl.daemon.api.client import Daemons
from natsctl.daemon.api.service import answering
from natsctl.daemon.operator import Operator
from natsctl.daemon.settings.settings import ControllerSettings
from natsctl.errors import NatsctlError, PermissionDeniedError
from natsctl.jetstream.bucket.browse import BucketStore
from natsctl.jetstream.bucket.bucket import Bucket
from natsctl.jetstream.connection.options import NatsOptions
from natsctl.jetstream.stores import Nats, connect
from natsctl.model.keys import matches
from tests.support.eventually import eventually
from tests.support.servers.nats_server import NatsServer

PAGE = Path(__file__).parents[2] / "docs" / "permissions.md"
SECRET = "s3cret"
USERS = ("daemon", "operator", "viewer")
RESPONSES = 'allow_responses: { max: 1, expires: "1m" }'
MANY, SIZE = 400, 10_000  # objects, so large that a server wants to hear that they were taken in


def documented() -> str:
    found = re.search(r"```conf\n(.*?)```", PAGE.read_text(), re.DOTALL)
    assert found
    return found[1]


def subjects() -> Iterator[tuple[str, str]]:
    """Return every user with every subject that is allowed to it."""
    for part in documented().split("user: ")[1:]:
        for subject in re.findall(r'"([^"]*[.>*][^"]*)"', part):
            yield part.split()[0], subject


def without(user: str, text: str, *, of: str = "") -> str:
    """Return a configuration, or the documented one, less one thing that is said of one user."""
    before, name, after = (of or documented()).partition(f"user: {user}\n")
    assert text in after
    instead = '"nothing"' if text.startswith('"') else ""  # no subjects at all would mean all
    return before + name + after.replace(text, instead, 1)


@pytest.fixture(autouse=True)
def _passwords(monkeypatch: pytest.MonkeyPatch) -> None:
    for user in USERS:
        monkeypatch.setenv(f"{user.upper()}_PASSWORD", SECRET)


@asynccontextmanager
async def served(folder: Path, config: str) -> AsyncIterator[NatsServer]:
    """A server with this configuration, and with an administrator who may do everything."""
    admin = f"users: [\n{{ user: admin, password: {SECRET} }}\n"
    async with NatsServer(folder / "nats", config=config.replace("users: [\n", admin)) as server:
        yield server


@asynccontextmanager
async def user(server: NatsServer, name: str) -> AsyncIterator[Nats]:
    options = NatsOptions(servers=(server.url,), user=name, password=SECRET)
    async with connect(options) as nats:
        yield nats


@asynccontextmanager
async def daemon(server: NatsServer) -> AsyncIterator[Operator]:
    async with user(server, "daemon") as nats:
        settings = ControllerSettings(stop_timeout_s=2)
        operator = Operator([Greetings()], nats=nats, settings=settings)
        async with answering(nats.connection, operator.runtimes), together() as group:
            running = group.create_task(operator.run())
            try:
                yield operator
            finally:
                operator.stop()
                await asyncio.wait((running,))


async def found(nats: Nats) -> Daemons:
    async def look() -> Daemons | None:
        try:
            return await Daemons.find(nats.connection)
        except NatsctlError:
            return None

    daemons = await eventually(look)
    assert daemons is not None
    return daemons


async def everything(server: NatsServer) -> None:
    """Have the daemon, the operator and the viewer do all that they do."""
    async with (
        daemon(server) as running,
        user(server, "admin") as admin,
        user(server, "operator") as operator,
        user(server, "viewer") as viewer,
    ):
        await eventually(running.synced.is_set)
        greetings = BucketStore(Bucket(operator.connection, "greetings"))
        await greetings.create("shop", b'{"spec": {"text": "hi"}}')
        await greetings.create("market", b'{"spec": {"text": "ho"}}')
        routes = BucketStore(Bucket(admin.connection, "routes"))
        await eventually(lambda: _has(routes, 2))
        await greetings.delete("market")
        await eventually(lambda: _has(routes, 1))
        for bucket in ("greetings", "defaults", "routes"):
            await _fill(admin, bucket)
        assert len(await greetings.listing()) > MANY
        asked = await found(operator)
        assert [each.state for each in await asked.status("greetings")] == ["syncing"]
        explanation = (await asked.explain("greetings", "shop"))[0]
        assert explanation.events_error == ""
        assert explanation.events[0].reason == "Synced"
        assert (await asked.resync("greetings", ["shop"]))[0].queued == 1
        plan = await asked.plan("greetings")
        assert (await asked.apply(plan)).orphans == plan.orphans
        looked = await found(viewer)
        assert await looked.status("greetings")
        assert await looked.explain("greetings", "shop")
        assert (await looked.tree("greetings", "shop")).branches[0].created


async def _has(store: BucketStore, number: int) -> bool:
    return len(await store.listing()) == number


async def _fill(admin: Nats, bucket: str) -> None:
    """Write many large objects that no controller makes anything of, at once."""
    value = json.dumps({"spec": 5, "filler": "x" * SIZE}).encode()
    for number in range(MANY):
        await admin.connection.client.publish(f"$KV.{bucket}.large-{number}", value)
    await admin.connection.client.flush()


def violations(server: NatsServer, name: str) -> list[str]:
    """Return the subjects on which the server kept a user from what he tried."""
    return re.findall(rf'user:{name}" - \w+ Violation - Subject "([^"]+)"', server.log())


async def test_the_documented_permissions_suffice(tmp_path: Path) -> None:
    async with served(tmp_path, documented()) as server:
        await everything(server)
        assert [violations(server, name) for name in USERS] == [[], [], []]


@pytest.mark.parametrize(("name", "subject"), list(subjects()))
async def test_every_documented_permission_is_needed(
    name: str, subject: str, tmp_path: Path
) -> None:
    def missed() -> bool:
        return any(matches(subject, tried) for tried in violations(server, name))

    less = without(name, f'"{subject}"')
    if name == "daemon" and "$JS.FC" in subject:
        less = without(name, RESPONSES, of=less)  # flow control is a response too, for a minute
    async with served(tmp_path, less) as server, trying(server):
        await eventually(missed, within_s=30)


async def test_a_daemon_that_may_not_respond_is_silent(tmp_path: Path) -> None:
    async with served(tmp_path, without("daemon", RESPONSES)) as server, trying(server):
        await eventually(lambda: violations(server, "daemon"), within_s=30)
        assert violations(server, "daemon")[0].startswith("_INBOX.")


@asynccontextmanager
async def trying(server: NatsServer) -> AsyncIterator[None]:
    """Try to do everything meanwhile, whatever comes of it."""
    doing = asyncio.create_task(everything(server))
    try:
        yield
    finally:
        doing.cancel()
        with suppress(BaseException):
            await doing


async def test_who_may_only_look_is_told_what_he_may_not_do(tmp_path: Path) -> None:
    async with (
        served(tmp_path, documented()) as server,
        daemon(server) as running,
        user(server, "viewer") as viewer,
    ):
        await eventually(running.synced.is_set)
        looked = await found(viewer)
        with pytest.raises(PermissionDeniedError, match=r"natsctl\.api\.gc\.plan\.greetings"):
            await looked.plan("greetings")
        with pytest.raises(PermissionDeniedError, match=r"natsctl\.api\.resync\.greetings"):
            await looked.resync("greetings", [])
