"""`natsctl doctor`: what is wrong with a set-up is told, and what to do; nothing is changed."""

import json
import signal
import time
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
from nats.js import JetStreamContext
from nats.js.api import KeyValueConfig, StreamConfig, StreamSource

from natsctl import connect
from natsctl.core.coordination.lease import Lease
from natsctl.core.coordination.own_record import Workload
from natsctl.daemon.doctor.doctor import examine
from natsctl.daemon.doctor.finding import Bounds
from natsctl.daemon.doctor.finding import Result as Judged
from natsctl.jetstream.connection.options import NatsOptions
from tests.support.cli.kube_namespace import unreachable
from tests.support.cli.natsctl_command import ROOT, Natsctl, Result, Running
from tests.support.eventually import eventually
from tests.support.servers.kube_cluster import KubeCluster
from tests.support.servers.nats_server import NatsCluster, NatsServer
from tests.support.servers.ports import free_port

GREETINGS = "controllers.greetings:Greetings"

Found = dict[str, tuple[str, str, str]]  # result, what was found, advice; by check


async def examined(natsctl: Natsctl, *words: str, status: int = 1) -> Found:
    """Run the doctor; return what it has found."""
    ended = await natsctl("doctor", "-o", "json", *words)
    assert ended.status == status, ended
    return {
        each["check"]: (each["result"], each["found"], each.get("advice", ""))
        for each in ended.json
    }


def unwell(found: Found) -> list[str]:
    return [check for check, (result, _, _) in found.items() if result != "ok"]


# ---- all is well


async def test_where_controllers_run_all_is_well_and_stays_as_it_is(
    natsctl: Natsctl,
    daemon: Callable[..., Awaitable[Running]],
    jetstream: JetStreamContext,
) -> None:
    running = await daemon(GREETINGS)
    await natsctl.done("put", "greetings", "shop", '{"spec": {"text": "hi"}}')
    await eventually(lambda: told(jetstream))
    assert await running.ends(signal.SIGTERM) == 0
    before = await streams(jetstream)
    found = await examined(natsctl, "-c", GREETINGS, status=0)
    assert unwell(found) == []
    assert found["bucket greetings"][1] == "history 5, one replica, delete markers stay"
    assert found["event stream"][1] == "1 events"
    assert len(found["installation"][1]) == 16
    assert found["nats clock"][1] == "equal to the local clock"
    assert found["nats latency"][1].endswith(" ms round trip")
    assert await streams(jetstream) == before


async def test_a_bucket_that_forgets_is_a_warning_that_says_what_to_do(
    natsctl: Natsctl, jetstream: JetStreamContext
) -> None:
    kept = KeyValueConfig("greetings", history=1, ttl=60)
    await jetstream.create_key_value(kept)
    found = await examined(natsctl, "-c", GREETINGS, status=0)
    result, text, advice = found["bucket greetings"]
    assert result == "warning"
    assert "values expire after 60 s without a delete marker" in text
    assert "history 1: the last state of an object" in text
    assert "nats stream edit KV_greetings --max-msgs-per-subject 5" in advice


async def test_a_mirror_is_known_and_can_only_be_read(
    natsctl: Natsctl, jetstream: JetStreamContext
) -> None:
    await jetstream.create_key_value(KeyValueConfig("origin"))
    mirror = StreamConfig("KV_greetings", mirror=StreamSource("KV_origin"))
    await jetstream.add_stream(mirror)
    found = await examined(natsctl, "-c", GREETINGS, status=0)
    result, text, advice = found["bucket greetings"]
    assert (result, text.partition(":")[0]) == ("warning", "a mirror of origin")
    assert "declare bucket origin" in advice


async def told(jetstream: JetStreamContext) -> bool:
    return (await jetstream.stream_info("natsctl_events")).state.messages == 1


async def streams(jetstream: JetStreamContext) -> dict[str, tuple[int, int, int]]:
    """Return the last revision of every stream, and how many messages and consumers it has."""
    found = await jetstream.streams_info()
    return {
        each.config.name or "": (
            each.state.last_seq,
            each.state.messages,
            each.state.consumer_count,
        )
        for each in found
    }


async def test_before_the_first_start_it_says_what_will_be_made(
    natsctl: Natsctl, jetstream: JetStreamContext
) -> None:
    found = await examined(natsctl, "-c", GREETINGS, status=0)
    assert unwell(found) == []
    assert found["bucket greetings"][1] == "it does not exist yet: the controller creates it"
    assert found["event stream"][1] == "it does not exist yet: the first event creates it"
    assert found["installation"][1] == "it has no id yet: the first daemon creates one"
    assert await streams(jetstream) == {}


async def test_without_a_controller_it_looks_at_what_all_need(natsctl: Natsctl) -> None:
    found = await examined(natsctl, status=0)
    expected = ["nats server", "nats latency", "jetstream", "jetstream limits", "installation"]
    assert list(found) == expected


async def test_people_read_a_line_for_each_and_what_to_do_beneath(
    natsctl: Natsctl, jetstream: JetStreamContext
) -> None:
    await jetstream.create_key_value(KeyValueConfig(bucket="routes", history=1))
    ended = await natsctl("doctor", "-c", GREETINGS)
    lines = ended.out.splitlines()
    assert ended.status == 0
    assert lines[0].startswith("ok      nats server: nats://127.0.0.1:")
    at = lines.index(
        "warning bucket routes: history 1: the last state of an object that is deleted while no "
        "daemon runs cannot be read"
    )
    assert lines[at + 1] == "        → nats stream edit KV_routes --max-msgs-per-subject 5"
    assert lines[-1] == "12 ok, 1 warning, 0 failed"


# ---- the server


async def test_no_server(folder: Path) -> None:
    found = await examined(Natsctl(folder), "-s", f"127.0.0.1:{free_port()}", "-c", GREETINGS)
    assert list(found) == ["nats server"]
    result, what, advice = found["nats server"]
    assert (result, "connection refused" in what) == ("failed", True)
    assert advice.startswith("start a server, or set its address: --server")


async def test_a_server_without_jetstream(folder: Path, tmp_path: Path) -> None:
    async with NatsServer(tmp_path / "plain", jetstream=False) as server:
        found = await examined(Natsctl(folder, server.url), "-c", GREETINGS)
    assert unwell(found) == ["jetstream"]
    assert list(found)[-1] == "jetstream"
    assert found["jetstream"][2] == "start the server with -js, and enable it for the account"


async def test_an_account_without_jetstream(folder: Path, tmp_path: Path) -> None:
    accounts = "accounts { A { users [{user: ann, password: pw}] } }"
    async with NatsServer(tmp_path / "plain", config=accounts) as server:
        words = ("--user", "ann", "--password", "pw", "-c", GREETINGS)
        found = await examined(Natsctl(folder, server.url), *words)
    assert unwell(found) == ["jetstream"]


async def test_a_wrong_password_which_is_not_shown(folder: Path, tmp_path: Path) -> None:
    config = "authorization { user: ann, password: right }"
    async with NatsServer(tmp_path / "closed", config=config) as server:
        ended = await Natsctl(folder, server.url)(
            "doctor", "--user", "ann", "--password", "hush-hush"
        )
    assert ended.status == 1
    assert "failed  nats server: " in ended.out
    assert "the server refuses user 'ann' and its password" in ended.out
    assert "→ set the credentials: --user and --password, --creds" in ended.out
    assert "hush" not in ended.out + ended.err


async def test_an_option_that_names_nothing(natsctl: Natsctl) -> None:
    found = await examined(natsctl, "--creds", "missing.creds")
    result, what, advice = found["nats server"]
    assert (result, "missing.creds" in what) == ("failed", True)
    assert advice == "correct the option or the file that it names"


async def test_a_server_that_is_slow(nats_server: NatsServer) -> None:
    options = NatsOptions(servers=(nats_server.url,))
    found = {each.check: each async for each in examine([], options, None, bounds=Bounds(slow_s=0))}
    assert found["nats latency"].result is Judged.WARNING
    assert "run controllers closer to the server" in found["nats latency"].advice


@pytest.mark.parametrize(
    ("limit", "status", "result", "told"),
    [
        ("max_streams: 5", 0, "ok", "2 of 5 streams"),
        ("max_streams: 2", 1, "failed", "nothing is free: 2 of 2 streams"),
        ("max_file: 2000", 0, "warning", "little is free: "),
    ],
)
async def test_limits_of_an_account(
    folder: Path, tmp_path: Path, *, limit: str, status: int, result: str, told: str
) -> None:
    config = f"accounts {{ A {{ jetstream {{ {limit} }}, users [{{user: a, password: b}}] }} }}"
    async with NatsServer(tmp_path / "small", config=config) as server:
        natsctl = Natsctl(folder, server.url.replace("//", "//a:b@"))
        for bucket in ("one", "two"):
            await natsctl.done("put", bucket, "key", "x" * 800, "--create-bucket")
        found = await examined(natsctl, status=status)
    assert found["jetstream limits"][0] == result
    assert found["jetstream limits"][1].startswith(told)


# ---- permissions

API = "$JS.API"
HEARD = ["_INBOX.>", "$SRV.*", "$SRV.*.natsctl", "$SRV.*.natsctl.*", "natsctl.api.>"]
LOOKING = "$SRV.INFO.natsctl"
VERBS = ("status", "explain", "tree", "resync", "gc.plan", "gc.apply", "gc.accept")
VERB_SUBJECTS = [f"natsctl.api.{verb}.greetings" for verb in VERBS]
ALLOWED = [
    *("natsctl.events.greetings.>", "natsctl.natsctl-doctor", f"{API}.INFO"),
    *(f"{API}.STREAM.NAMES", f"{API}.STREAM.CREATE.natsctl_events"),
    f"{API}.STREAM.INFO.natsctl_events",
    *(
        subject.format(bucket)
        for bucket in ("greetings", "routes", "defaults", "natsctl", "natsctl_leases")
        for subject in (
            f"{API}.STREAM.INFO.KV_{{0}}",
            f"{API}.STREAM.CREATE.KV_{{0}}",
            f"{API}.STREAM.MSG.GET.KV_{{0}}",
        )
    ),
    *(
        subject.format(bucket)
        for bucket in ("greetings", "routes", "defaults")
        for subject in (
            f"{API}.CONSUMER.CREATE.KV_{{0}}.*.$KV.{{0}}.>",
            f"{API}.CONSUMER.DELETE.KV_{{0}}.*",
            "$JS.FC.KV_{0}.>",
        )
    ),
    *("$KV.greetings.>", "$KV.routes.>"),
    *("$KV.natsctl.gc.greetings", "$KV.natsctl.installation", "$KV.natsctl.lease.greetings"),
    "$KV.natsctl_leases.greetings",
]


async def guarded(
    folder: Path,
    tmp_path: Path,
    publish: Sequence[str] = ALLOWED,
    subscribe: Sequence[str] = HEARD,
    *,
    status: int = 0,
    shared: str = "--leader-elect",
) -> Found:
    """Examine a server whose user may do just that."""
    users = f"{{publish: {json.dumps(publish)}, subscribe: {json.dumps(subscribe)}}}"
    config = f"authorization {{ users [{{user: a, password: b, permissions: {users}}}] }}"
    async with NatsServer(tmp_path / "guarded", config=config) as server:
        natsctl = Natsctl(folder, server.url.replace("//", "//a:b@"))
        return await examined(natsctl, "-c", GREETINGS, shared, status=status)


async def test_a_user_who_may_do_what_is_needed_is_well(folder: Path, tmp_path: Path) -> None:
    assert unwell(await guarded(folder, tmp_path)) == []


async def test_who_shares_keys_watches_the_records_of_the_others(
    folder: Path, tmp_path: Path
) -> None:
    records = "$KV.natsctl_leases.greetings.shards.*"
    watching = [
        f"{API}.CONSUMER.CREATE.KV_natsctl_leases.*.{records}",
        f"{API}.CONSUMER.DELETE.KV_natsctl_leases.*",
        "$JS.FC.KV_natsctl_leases.>",
    ]
    allowed = [*ALLOWED, *watching, records]
    assert unwell(await guarded(folder, tmp_path / "all", allowed, shared="--shard")) == []
    for missing in (*watching, records):
        left = [each for each in allowed if each != missing]
        found = await guarded(folder, tmp_path / "some", left, shared="--shard", status=1)
        assert unwell(found) == ["permissions natsctl_leases"]
        assert missing.replace(">", "*").partition("*")[0] in found["permissions natsctl_leases"][1]


async def test_the_documented_user_of_a_daemon_lacks_nothing_but_a_sight_of_limits(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    page = (ROOT / "docs" / "permissions.md").read_text()
    config = page.partition("```conf\n")[2].partition("```")[0]
    for user in ("DAEMON", "OPERATOR", "VIEWER"):
        monkeypatch.setenv(f"{user}_PASSWORD", "s3cret")
    async with NatsServer(tmp_path / "documented", config=config) as server:
        words = ("--user", "daemon", "--password", "s3cret", "-c", GREETINGS)
        found = await examined(Natsctl(folder, server.url), *words, status=0)
    assert unwell(found) == ["jetstream limits"]
    assert found["jetstream limits"][0] == "warning"


@pytest.mark.parametrize(
    ("missing", "check"),
    [
        (f"{API}.STREAM.INFO.KV_routes", "bucket routes"),
        (f"{API}.STREAM.CREATE.KV_routes", "bucket routes"),
        (f"{API}.STREAM.MSG.GET.KV_defaults", "permissions defaults"),
        (f"{API}.CONSUMER.CREATE.KV_routes.*.$KV.routes.>", "permissions routes"),
        (f"{API}.CONSUMER.DELETE.KV_routes.*", "permissions routes"),
        ("$JS.FC.KV_greetings.>", "permissions greetings"),
        ("$KV.greetings.>", "permissions greetings"),
        ("$KV.natsctl.gc.greetings", "permissions natsctl"),
        ("$KV.natsctl.installation", "permissions natsctl"),
        (f"{API}.STREAM.INFO.KV_natsctl_leases", "bucket natsctl_leases"),
        (f"{API}.STREAM.CREATE.KV_natsctl_leases", "bucket natsctl_leases"),
        (f"{API}.STREAM.MSG.GET.KV_natsctl_leases", "permissions natsctl_leases"),
        ("$KV.natsctl_leases.greetings", "permissions natsctl_leases"),
        ("natsctl.events.greetings.>", "permissions of events"),
        (f"{API}.STREAM.CREATE.natsctl_events", "permissions of events"),
        (f"{API}.STREAM.INFO.natsctl_events", "event stream"),
    ],
)
async def test_a_permission_that_is_missing_is_named(
    folder: Path, tmp_path: Path, missing: str, check: str
) -> None:
    less = [subject for subject in ALLOWED if subject != missing]
    assert len(less) == len(ALLOWED) - 1
    found = await guarded(folder, tmp_path, less, status=1)
    assert unwell(found) == [check]
    result, what, advice = found[check]
    stem = missing.partition("*")[0].removesuffix(".>").removesuffix(".")
    assert result == "failed"
    assert stem in what
    assert stem in advice


async def test_a_user_who_may_not_see_limits_is_warned(folder: Path, tmp_path: Path) -> None:
    less = [subject for subject in ALLOWED if subject != f"{API}.INFO"]
    found = await guarded(folder, tmp_path, less)
    assert unwell(found) == ["jetstream limits"]


async def test_a_user_who_may_hear_no_answer(folder: Path, tmp_path: Path) -> None:
    found = await guarded(folder, tmp_path, subscribe=["other.>"], status=1)
    assert unwell(found) == ["nats permissions"]
    assert "_INBOX.>" in found["nats permissions"][1]


async def test_people_read_no_more_of_what_is_forbidden_than_what_is_found(
    folder: Path, tmp_path: Path
) -> None:
    config = (
        "authorization { users [{user: a, password: b, "
        'permissions: {publish: ["other"], subscribe: ["_INBOX.>"]}}] }'
    )
    async with NatsServer(tmp_path / "closed", config=config) as server:
        ended = await Natsctl(folder, server.url.replace("//", "//a:b@"))("doctor", "-c", GREETINGS)
    assert ended.status == 1
    assert "failed  bucket greetings: " in ended.out
    assert ended.err == ""


# ---- being asked, and asking


@pytest.mark.parametrize(
    ("missing", "told"),
    [
        ("$SRV.*", "$SRV.*"),
        ("$SRV.*.natsctl", "$SRV.*.natsctl"),
        ("$SRV.*.natsctl.*", "$SRV.*.natsctl.*"),
        ("natsctl.api.>", ", ".join(VERB_SUBJECTS)),
    ],
)
async def test_a_daemon_that_cannot_be_asked_works(
    folder: Path, tmp_path: Path, missing: str, told: str
) -> None:
    less = [subject for subject in HEARD if subject != missing]
    found = await guarded(folder, tmp_path, subscribe=less)
    assert unwell(found) == ["service"]
    result, what, advice = found["service"]
    assert result == "warning"
    assert what == f"a daemon of this user gets no requests: it may not subscribe to {told}"
    assert advice.endswith(f"subscribe: {told}")


@pytest.mark.parametrize(
    ("more", "result", "told"),
    [
        ([], "ok", "not by this user: only natsctl status, resync and the like need it"),
        ([LOOKING, *VERB_SUBJECTS], "ok", ", ".join(VERBS)),
        (
            [LOOKING, *VERB_SUBJECTS[:-1]],
            "ok",
            f"{', '.join(VERBS[:-1])}; not everything: natsctl.api.gc.accept.greetings",
        ),
        (
            VERB_SUBJECTS,
            "warning",
            f"this user may send requests to daemons but not find them: not publish to {LOOKING}",
        ),
        (
            [LOOKING],
            "warning",
            "this user may find daemons but send no requests: not publish to ALL",
        ),
    ],
)
async def test_what_a_user_may_ask_daemons(
    folder: Path, tmp_path: Path, *, more: list[str], result: str, told: str
) -> None:
    found = await guarded(folder, tmp_path, [*ALLOWED, *more])
    assert unwell(found) == (["asking daemons"] if result == "warning" else [])
    expected = told.replace("ALL", ", ".join(VERB_SUBJECTS))
    assert found["asking daemons"][:2] == (result, expected)


async def test_a_daemon_that_runs_notices_nothing(
    natsctl: Natsctl,
    daemon: Callable[..., Awaitable[Running]],
    jetstream: JetStreamContext,
) -> None:
    running = await daemon(GREETINGS, options=("--leader-elect",))
    await natsctl.done("put", "greetings", "shop", '{"spec": {"text": "hi"}}')
    await eventually(lambda: told(jetstream))
    before = running.log, [each["syncs"] for each in (await asked(natsctl)).json]
    assert before[1] == [1]
    found = await examined(natsctl, "-c", GREETINGS, "--leader-elect", status=0)
    assert unwell(found) == []
    assert found["bucket natsctl_leases"][1] == "history 1, one replica"
    assert (running.log, [each["syncs"] for each in (await asked(natsctl)).json]) == before


async def asked(natsctl: Natsctl) -> Result:
    return await natsctl("status", "-o", "json")


# ---- leases


async def test_leases_are_looked_at_only_where_a_leader_is_elected(
    natsctl: Natsctl, folder: Path
) -> None:
    assert "bucket natsctl_leases" not in await examined(natsctl, "-c", GREETINGS, status=0)
    (folder / "natsctl.toml").write_text("[controllers]\nleader_elect = true\n")
    found = await examined(natsctl, "-c", GREETINGS, status=0)
    made = "it does not exist yet: the controller creates it"
    assert found["bucket natsctl_leases"] == ("ok", made, "")


@pytest.mark.parametrize(
    ("config", "told"),
    [
        ({}, "leases cannot be written: the bucket does not allow a TTL per message"),
        (
            {"allow_msg_ttl": True, "max_age": 20.0},
            "values expire after 20 s, so two processes could lead at once",
        ),
    ],
)
async def test_a_bucket_in_which_leases_cannot_be_kept(
    natsctl: Natsctl, jetstream: JetStreamContext, config: dict[str, Any], told: str
) -> None:
    await jetstream.add_stream(
        StreamConfig(name="KV_natsctl_leases", subjects=["$KV.natsctl_leases.>"], **config)
    )
    found = await examined(natsctl, "-c", GREETINGS, "--leader-elect")
    assert unwell(found) == ["bucket natsctl_leases"]
    assert found["bucket natsctl_leases"][:2] == ("failed", told)
    assert "delete the bucket" in found["bucket natsctl_leases"][2]


async def test_a_lease_of_another_application_is_a_failure(
    natsctl: Natsctl, nats_server: NatsServer
) -> None:
    async with connect(nats_server.url) as nats:
        lease = Lease(  # type: ignore[call-arg]
            nats.leases(ttl_s=60),
            "greetings",
            holder="host:1:aa",
            ttl_s=60,
            clock=time.monotonic,
            work=Workload("Site.sites"),
        )
        assert await lease.acquire() is not None
        found = await examined(natsctl, "-c", GREETINGS)
    result, why, _ = found["lease greetings"]
    assert result == "failed"
    assert "host:1:aa runs another controller that is named greetings too" in why
    assert "it works on Site.sites, this one on Greeting.greetings" in why


async def test_leases_that_are_short_enough_for_their_bucket(
    natsctl: Natsctl, jetstream: JetStreamContext
) -> None:
    await jetstream.add_stream(
        StreamConfig(
            name="KV_natsctl_leases",
            subjects=["$KV.natsctl_leases.>"],
            max_msgs_per_subject=1,
            deny_delete=True,
            allow_msg_ttl=True,
            max_age=20.0,
        )
    )
    words = ("--leader-elect", "--lease-ttl", "10")
    assert unwell(await examined(natsctl, "-c", GREETINGS, *words, status=0)) == []


# ---- buckets


async def test_a_bucket_whose_messages_can_be_deleted_one_by_one(
    natsctl: Natsctl, jetstream: JetStreamContext
) -> None:
    await jetstream.add_stream(
        StreamConfig(
            name="KV_routes", subjects=["$KV.routes.>"], max_msgs_per_subject=5, allow_direct=True
        )
    )
    found = await examined(natsctl, "-c", GREETINGS, status=0)
    assert unwell(found) == ["bucket routes"]
    assert found["bucket routes"][0] == "warning"
    assert "single messages may be deleted" in found["bucket routes"][1]


async def test_a_bucket_that_nobody_is_to_make(natsctl: Natsctl, folder: Path) -> None:
    (folder / "given.py").write_text(GIVEN)
    found = await examined(natsctl, "-c", "given:Things")
    assert unwell(found) == ["bucket things"]
    assert "create=False" in found["bucket things"][1]
    assert found["bucket things"][2].startswith("create it: nats kv add things")


GIVEN = """
from natsctl import Controller, Object, kv, primary

class Things(Controller):
    things = primary(kv(Object, bucket="things", create=False))

    async def sync_handler(self, key):
        pass
"""


async def test_events_that_another_stream_takes(
    natsctl: Natsctl, jetstream: JetStreamContext
) -> None:
    await jetstream.add_stream(name="everything", subjects=["natsctl.>"])
    found = await examined(natsctl, "-c", GREETINGS)
    assert unwell(found) == ["event stream"]
    assert found["event stream"][1] == "stream everything has the subjects natsctl.events.>"


async def test_a_stream_of_events_that_is_another(
    natsctl: Natsctl, jetstream: JetStreamContext
) -> None:
    await jetstream.add_stream(name="natsctl_events", subjects=["other.>"])
    found = await examined(natsctl, "-c", GREETINGS)
    assert unwell(found) == ["event stream"]
    assert "nats stream rm natsctl_events" in found["event stream"][2]


async def test_replicas_that_are_away_and_buckets_that_have_none(
    folder: Path, nats_cluster: NatsCluster
) -> None:
    (folder / "many.py").write_text(MANY)
    natsctl = Natsctl(folder, nats_cluster.url)
    async with natsctl.running("run", "-c", "many:Things") as running:
        await running.says("primaries listed, syncing")
        assert await running.ends(signal.SIGTERM) == 0
    found = await examined(natsctl, "-c", "many:Things", status=0)
    assert unwell(found) == ["bucket one"]
    assert "one replica in a cluster" in found["bucket one"][1]
    nats_cluster["n3"].kill()
    await eventually(lambda: away(natsctl))


MANY = """
from natsctl import Controller, Object, kv, primary, tertiary

class Things(Controller):
    things = primary(kv(Object, bucket="things", replicas=3))
    ones = tertiary(kv(Object, bucket="one", replicas=1))

    async def sync_handler(self, key):
        pass
"""


async def away(natsctl: Natsctl) -> bool:
    ended = await natsctl("doctor", "-o", "json", "-c", "many:Things")
    found: list[dict[str, Any]] = ended.json
    told = {each["check"]: each["found"] for each in found}
    assert "of its 3 replicas these are offline or behind: n3" in told.get("bucket things", ""), (
        told
    )
    return True


# ---- Kubernetes

FOREIGN = """
from natsctl import Controller, Object, kube, kv, primary, secondary, tertiary

class Things(Controller):
    things = primary(kv(Object, bucket="things"))
    configs = secondary(kube("v1", "ConfigMap", namespace="{namespace}"))
    unicorns = tertiary(kube("zoo.example.com/v1", "Unicorn"))

    async def sync_handler(self, key):
        pass
"""
KNOWN = FOREIGN.replace('unicorns = tertiary(kube("zoo.example.com/v1", "Unicorn"))', "")


@pytest.fixture
def guest(folder: Path, nats_server: NatsServer, kube_server: KubeCluster) -> Natsctl:
    return Natsctl(folder, nats_server.url, kubeconfig=kube_server.kubeconfig("guest"))


async def test_a_cluster_that_is_not_there(natsctl: Natsctl, folder: Path) -> None:
    (folder / "known.py").write_text(KNOWN.format(namespace="default"))
    words = ("-c", "known:Things")
    none = await examined(natsctl, *words)
    assert unwell(none) == ["kubernetes"]
    assert "there is no Kubernetes cluster to connect to" in none["kubernetes"][1]
    away = await examined(natsctl, *words, "--kubeconfig", str(unreachable(folder)))
    assert unwell(away) == ["kubernetes"]
    assert "https://127.0.0.1:1" in away["kubernetes"][1]
    forbidden = await examined(natsctl, *words, "--no-kube")
    assert "ConfigMap is kept there, and --no-kube" in forbidden["kubernetes"][1]


async def test_a_kind_that_the_cluster_does_not_have(
    folder: Path, nats_server: NatsServer, kube_server: KubeCluster, kube_namespace: str
) -> None:
    (folder / "foreign.py").write_text(FOREIGN.format(namespace=kube_namespace))
    admin = Natsctl(folder, nats_server.url, kubeconfig=kube_server.kubeconfig())
    found = await examined(admin, "-c", "foreign:Things")
    assert unwell(found) == ["kind Unicorn.zoo.example.com"]
    assert "the server has no API group" in found["kind Unicorn.zoo.example.com"][1]
    assert found["kind ConfigMap"][1] == "configmaps of v1"
    assert found["kubernetes clock"][1] == "equal to the local clock"


async def test_permissions_that_are_missing_until_what_rbac_prints_is_granted(
    guest: Natsctl, folder: Path, kube_server: KubeCluster, kube_namespace: str
) -> None:
    (folder / "known.py").write_text(KNOWN.format(namespace=kube_namespace))
    found = await examined(guest, "-c", "known:Things")
    assert unwell(found) == ["kubernetes permissions"]
    ended = await guest("doctor", "-c", "known:Things")
    place = f"in namespace '{kube_namespace}'"
    verbs = "get, list, watch, create, patch, delete"
    assert f"failed  kubernetes permissions: may not {verbs} configmaps {place}\n" in ended.out
    assert f"may not create, patch events.events.k8s.io {place}\n" in ended.out
    assert "→ grant what natsctl rbac prints" in ended.out

    printed = json.loads(await guest.done("rbac", "-c", "known:Things", "-o", "json"))
    rules = printed["items"][0]["rules"]
    partial = [
        {**rule, "verbs": [verb for verb in rule["verbs"] if verb != "delete"]} for rule in rules
    ]
    kube_server.allow("guest", partial, namespace=kube_namespace)
    found = await eventually(lambda: left(guest))
    assert found["kubernetes permissions"][1] == f"may not delete configmaps {place}"
    kube_server.allow("guest", rules, namespace=kube_namespace)
    await eventually(lambda: granted(guest))


async def left(guest: Natsctl) -> Found:
    found = await examined(guest, "-c", "known:Things")
    assert "may not delete" in found["kubernetes permissions"][1]
    return found


async def granted(guest: Natsctl) -> bool:
    found = await examined(guest, "-c", "known:Things", status=0)
    assert unwell(found) == []
    return found["kubernetes permissions"][1] == "all 8 that natsctl rbac prints"


async def test_a_user_whom_the_cluster_does_not_know(
    folder: Path, nats_server: NatsServer, kube_server: KubeCluster
) -> None:
    (folder / "known.py").write_text(KNOWN.format(namespace="default"))
    config = kube_server.kubeconfig("guest")
    stranger = folder / "stranger.yaml"
    stranger.write_text(config.read_text().replace(kube_server.tokens["guest"], "of-nobody"))
    found = await examined(
        Natsctl(folder, nats_server.url, kubeconfig=stranger), "-c", "known:Things"
    )
    assert unwell(found) == ["kubernetes"]
    assert "of-nobody" not in str(found)
