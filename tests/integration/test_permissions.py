"""The documented permissions suffice, and each of them is needed."""

import asyncio
import json
import re
from collections import defaultdict
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path

import pytest

from controllers.greetings import Greetings
from natsctl import NatsOptions, Operator, connect, kv
from natsctl.daemon.kinds import publishing
from natsctl.daemon.messages import KeyExplanation
from natsctl.daemon.nats_permissions import nats_configuration
from natsctl.daemon.settings.settings import Settings
from natsctl.errors import PermissionDeniedError
from natsctl.jetstream.bucket import Bucket
from natsctl.jetstream.events import events_between
from natsctl.jetstream.store import BucketStore
from natsctl.model.bookkeeping import failing_prefix
from natsctl.model.keys import matches
from natsctl.model.pause import Pause
from natsctl.operate.buckets import published_schemas
from natsctl.operate.pauses import (
    pause_controller,
    pause_object,
    resume_controller,
    resume_object,
)
from tests.support.clients.daemons import find_daemons, running_operator
from tests.support.clients.nats import Nats
from tests.support.eventually import eventually
from tests.support.patience import WAIT_S
from tests.support.servers.nats_server import NatsServer

PAGE = Path(__file__).parents[2] / "docs" / "permissions.md"
SECRET = "s3cret"
USERS = ("daemon", "operator", "viewer")
RESPONSES = 'allow_responses: { max: 1, expires: "1m" }'
TRACED = "trace: true\nmax_traced_msg_len: 1\n"
MANY, SIZE = 250, 10_000  # enough large objects for flow control


def documented() -> str:
    block = re.search(r"```conf\n(.*?)```", PAGE.read_text(), re.DOTALL)
    assert block
    return block[1]


def subjects() -> Iterator[tuple[str, str, str]]:
    """Yield every user with each subject to which it may publish or subscribe."""
    lists = re.compile(r"(publish|subscribe): {\s*allow: \[(.*?)\]", re.DOTALL)
    for part in documented().split("user: ")[1:]:
        for kind, allowed in lists.findall(part):
            for subject in re.findall(r'"([^"]+)"', allowed):
                yield part.split()[0], kind, subject


def operations(server: NatsServer) -> dict[tuple[str, str], set[str]]:
    """Return the subjects to which each user published or subscribed, from the traced log."""
    done = defaultdict[tuple[str, str], set[str]](set)
    traced = r'/user:(\w+)" - <<- \[H?(PUB|SUB) (\S+)'
    for name, operation, subject in re.findall(traced, server.log()):
        done[name, "publish" if operation == "PUB" else "subscribe"].add(subject)
    return done


@pytest.fixture(autouse=True)
def _passwords(monkeypatch: pytest.MonkeyPatch) -> None:
    for user in USERS:
        monkeypatch.setenv(f"{user.upper()}_PASSWORD", SECRET)


@asynccontextmanager
async def served(folder: Path, config: str) -> AsyncIterator[NatsServer]:
    """Run a server with this configuration and a user `admin` with all permissions."""
    admin = f"users: [\n{{ user: admin, password: {SECRET} }}\n"
    async with NatsServer(folder / "nats", config=config.replace("users: [\n", admin)) as server:
        yield server


@asynccontextmanager
async def user(server: NatsServer, name: str) -> AsyncIterator[Nats]:
    options = NatsOptions(servers=(server.url,), user=name, password=SECRET, silence_s=WAIT_S)
    async with connect(options) as nats:
        yield nats


@asynccontextmanager
async def daemon(server: NatsServer) -> AsyncIterator[Operator]:
    async with user(server, "daemon") as nats:
        controllers = [Greetings()]
        async with publishing(nats, controllers), running_operator(nats, controllers) as operator:
            yield operator


async def run_all_operations(server: NatsServer) -> None:
    """Run every operation of the daemon, the operator and the viewer.

    Each bucket gets many large objects. A daemon that starts then reads the newest ones.
    """
    await _run_operations(server)
    async with daemon(server) as restarted:
        await eventually(restarted.synced.is_set)


async def _run_operations(server: NatsServer) -> None:
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
        await _pause_and_resume(operator, routes)
        await _fail_for_a_while(admin, greetings, routes)
        for bucket in ("greetings", "defaults", "routes"):
            await _fill(admin, bucket)
        await _fill(admin, "natsctl", "controllers.greetings.paused.greetings.")
        assert len(await greetings.listing()) > MANY
        as_operator = await find_daemons(operator)
        assert [status.state for status in await as_operator.status("greetings")] == ["syncing"]

        async def explained() -> KeyExplanation | None:
            explanation = (await as_operator.explain("greetings", "shop"))[0]
            return explanation if explanation.events or explanation.events_error else None

        explanation = await eventually(explained)
        assert explanation is not None
        assert explanation.events_error == ""
        assert explanation.events[0].reason == "Synced"
        assert (await as_operator.resync("greetings", ["shop"]))[0].queued == 1
        plan = await as_operator.plan("greetings")
        assert (await as_operator.apply(plan)).orphans == plan.orphans
        await eventually(lambda: published_schemas(operator.connection, "greetings"))
        as_viewer = await find_daemons(viewer)
        assert await as_viewer.status("greetings")
        assert await as_viewer.explain("greetings", "shop")
        assert (await as_viewer.tree("greetings", "shop")).branches[0].created
        for nats in (operator, viewer):
            assert await events_between(nats.connection, "greetings", ">")


async def _has(store: BucketStore, number: int) -> bool:
    return len(await store.listing()) == number


async def _pause_and_resume(operator: Nats, routes: BucketStore) -> None:
    """Pause and resume the controller, and an object that is deleted in between."""
    connection, greetings = operator.connection, Bucket(operator.connection, "greetings")
    await pause_controller(connection, "greetings", Pause())
    await resume_controller(connection, "greetings")
    await BucketStore(greetings).create("mill", b'{"spec": {"text": "hm"}}')
    await eventually(lambda: _has(routes, 2))
    await pause_object(connection, "greetings", "mill", Pause())
    await BucketStore(greetings).delete("mill")
    await resume_object(connection, "greetings", "mill")
    await eventually(lambda: _has(routes, 1))


async def _fail_for_a_while(admin: Nats, greetings: BucketStore, routes: BucketStore) -> None:
    """Make a key fail, because its route belongs to nobody, until its failure is recorded."""
    await routes.create("bank", b'{"spec": {}}')
    await greetings.create("bank", b'{"spec": {"text": "ha"}}')
    records = BucketStore(Bucket(admin.connection, "natsctl"))
    name = failing_prefix("greetings") + "bank"

    async def is_recorded() -> bool:
        return any(record.key == name for record in await records.listing())

    await eventually(is_recorded)
    await greetings.delete("bank")
    await routes.delete("bank")


async def _fill(admin: Nats, bucket: str, prefix: str = "") -> None:
    """Write many large invalid objects at once."""
    value = json.dumps({"spec": 5, "filler": "x" * SIZE}).encode()
    for number in range(MANY):
        await admin.connection.client.publish(f"$KV.{bucket}.{prefix}large-{number}", value)
    await admin.connection.client.flush()


def violations(server: NatsServer, name: str) -> list[str]:
    """Return the subjects of a user's permission violations from the server log."""
    return re.findall(rf'user:{name}" - \w+ Violation - Subject "([^"]+)"', server.log())


def test_the_documented_permissions_are_those_that_rbac_prints() -> None:
    printed = nats_configuration([Greetings()], Settings())
    assert documented() == "\n".join([*printed, ""])


async def test_the_documented_permissions_suffice_and_each_is_needed(tmp_path: Path) -> None:
    """A permission is needed if it alone allows something that its user does."""
    async with served(tmp_path, f"{documented()}{TRACED}") as server:
        await run_all_operations(server)
        assert [violations(server, name) for name in USERS] == [[], [], []]
        done = operations(server)
    unneeded = []
    for name, kind, subject in subjects():
        others = [each for user, of, each in subjects() if (user, of) == (name, kind)]
        others.remove(subject)
        tried = [each for each in done[name, kind] if matches(subject, each)]
        if all(any(matches(other, each) for other in others) for each in tried):
            unneeded.append((name, kind, subject))
    assert unneeded == []


async def test_a_daemon_that_may_not_respond_is_silent(tmp_path: Path) -> None:
    assert documented().count(RESPONSES) == 1
    async with served(tmp_path, documented().replace(RESPONSES, "")) as server:
        doing = asyncio.create_task(run_all_operations(server))
        await eventually(lambda: violations(server, "daemon"), within_s=200)
        assert violations(server, "daemon")[0].startswith("_INBOX.")
        doing.cancel()
        with suppress(BaseException):
            await doing


async def test_a_viewer_gets_an_error_with_the_subject_of_the_missing_permission(
    tmp_path: Path,
) -> None:
    async with (
        served(tmp_path, documented()) as server,
        daemon(server) as running,
        user(server, "viewer") as viewer,
    ):
        await eventually(running.synced.is_set)
        as_viewer = await find_daemons(viewer)
        with pytest.raises(PermissionDeniedError, match=r"natsctl\.api\.gc\.plan\.greetings"):
            await as_viewer.plan("greetings")
        with pytest.raises(PermissionDeniedError, match=r"natsctl\.api\.resync\.greetings"):
            await as_viewer.resync("greetings", [])


async def test_a_user_who_may_only_watch_the_keys_of_a_bucket_watches_it(tmp_path: Path) -> None:
    allowed = (
        *("$JS.API.STREAM.INFO.KV_things", "$JS.API.STREAM.MSG.GET.KV_things"),
        *("$JS.API.CONSUMER.CREATE.KV_things.*.$KV.things.>", "$JS.API.CONSUMER.DELETE.>"),
    )
    permissions = f"publish: {json.dumps(allowed)}, subscribe: '_INBOX.>'"
    config = f"""authorization {{ users: [
        {{ user: viewer, password: {SECRET}, permissions: {{ {permissions} }} }}
    ] }}"""
    async with (
        served(tmp_path, config) as server,
        user(server, "admin") as admin,
        user(server, "viewer") as viewer,
    ):
        await admin.open(kv(bytes, bucket="things"))
        things = BucketStore(Bucket(admin.connection, "things"))
        await things.create("shop", b"{}")
        watched = BucketStore(Bucket(viewer.connection, "things"))
        assert [message.key for message in await watched.listing()] == ["shop"]
