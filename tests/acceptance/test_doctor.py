"""`natsctl doctor` reports problems of a set-up with advice, and changes nothing."""

import json
import signal
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import Any

import msgspec
import pytest
from nats.js import JetStreamContext
from nats.js.api import StreamConfig
from nats.js.errors import NotFoundError

from natsctl import connect
from natsctl.core.coordination.lease import Record, Workload, record_key
from tests.support.cli.kube_namespace import unreachable
from tests.support.cli.natsctl_command import ROOT, Natsctl, Running
from tests.support.clients.nats_admin import Admin
from tests.support.eventually import eventually
from tests.support.servers.kube_cluster import KubeCluster
from tests.support.servers.nats_server import NatsCluster, NatsServer

GREETINGS = "controllers.greetings:Greetings"

Found = dict[str, tuple[str, str, str]]  # result, finding and advice by check


async def examined(natsctl: Natsctl, *words: str, status: int = 1) -> Found:
    """Run the doctor and return its findings."""
    ended = await natsctl("doctor", "-o", "json", *words)
    assert ended.status == status, ended
    return {
        entry["check"]: (entry["result"], entry["found"], entry.get("advice", ""))
        for entry in ended.json
    }


def problems(findings: Found) -> list[str]:
    """Return the checks that are not ok, but for the latency, which a busy machine makes long."""
    return [
        check
        for check, (result, _, _) in findings.items()
        if result != "ok" and check != "nats latency"
    ]


# ---- no problems


async def test_doctor_finds_no_problem_after_a_controller_ran_and_changes_nothing(
    natsctl: Natsctl,
    daemon: Callable[..., Awaitable[Running]],
    jetstream: JetStreamContext,
) -> None:
    running = await daemon(GREETINGS)
    await natsctl.done("put", "greetings", "shop", '{"spec": {"text": "hi"}}')
    await eventually(lambda: has_one_event(jetstream))
    assert await running.ends(signal.SIGTERM) == 0
    before = await streams(jetstream)
    findings = await examined(natsctl, "-c", GREETINGS, status=0)
    assert problems(findings) == []
    assert findings["bucket greetings"][1] == "history 5, one replica, delete markers stay"
    assert findings["event stream"][1] == "1 events"
    assert len(findings["installation"][1]) == 16
    assert findings["nats clock"][1] == "equal to the local clock"
    assert findings["nats latency"][1].endswith(" ms round trip")
    assert await streams(jetstream) == before


async def has_one_event(jetstream: JetStreamContext) -> bool:
    try:
        return (await jetstream.stream_info("natsctl_events")).state.messages == 1
    except NotFoundError:  # the first event creates the stream
        return False


async def streams(jetstream: JetStreamContext) -> dict[str, tuple[int, int, int]]:
    """Return the last revision, message count and consumer count of every stream."""
    findings = await jetstream.streams_info()
    return {
        entry.config.name or "": (
            entry.state.last_seq,
            entry.state.messages,
            entry.state.consumer_count,
        )
        for entry in findings
    }


# ---- the server


async def test_doctor_reports_a_server_without_jetstream(folder: Path, tmp_path: Path) -> None:
    async with NatsServer(tmp_path / "plain", jetstream=False) as server:
        findings = await examined(Natsctl(folder, server.url), "-c", GREETINGS)
    assert problems(findings) == ["jetstream"]
    assert list(findings)[-1] == "jetstream"
    assert findings["jetstream"][2] == "start the server with -js, and enable it for the account"


async def test_doctor_reports_a_wrong_password_without_showing_it(
    folder: Path, tmp_path: Path
) -> None:
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


@pytest.mark.parametrize(
    ("limit", "status", "result", "expected"),
    [
        ("max_streams: 5", 0, "ok", "2 of 5 streams"),
        ("max_streams: 2", 1, "failed", "nothing is free: 2 of 2 streams"),
        ("max_file: 2000", 0, "warning", "little is free: "),
    ],
)
async def test_doctor_reports_the_limits_of_an_account(
    folder: Path, tmp_path: Path, *, limit: str, status: int, result: str, expected: str
) -> None:
    config = f"accounts {{ A {{ jetstream {{ {limit} }}, users [{{user: a, password: b}}] }} }}"
    async with NatsServer(tmp_path / "small", config=config) as server:
        natsctl = Natsctl(folder, server.url.replace("//", "//a:b@"))
        for bucket in ("one", "two"):
            await natsctl.done("put", bucket, "key", "x" * 800, "--create-bucket")
        findings = await examined(natsctl, status=status)
    assert findings["jetstream limits"][0] == result
    assert findings["jetstream limits"][1].startswith(expected)


# ---- permissions

API = "$JS.API"
SUBSCRIBED = ["_INBOX.>", "$SRV.*", "$SRV.*.natsctl", "$SRV.*.natsctl.*", "natsctl.api.>"]
DISCOVERY = "$SRV.INFO.natsctl"
VERBS = (
    "status",
    "explain",
    "tree",
    "manifest",
    "plan",
    "resync",
    "record",
    "recording",
    "recording.unmasked",
    "gc.plan",
    "gc.apply",
    "gc.accept",
)
VERB_SUBJECTS = [f"natsctl.api.{verb}.greetings" for verb in VERBS]
LEASES = [
    f"{API}.CONSUMER.CREATE.KV_natsctl_leases.*.$KV.natsctl_leases.greetings.>",
    f"{API}.CONSUMER.DELETE.KV_natsctl_leases.*",
    "$JS.FC.KV_natsctl_leases.>",
    "$KV.natsctl_leases.greetings.>",
]
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
    *LEASES,
]


async def examined_as(
    folder: Path,
    tmp_path: Path,
    publish: Sequence[str] = ALLOWED,
    subscribe: Sequence[str] = SUBSCRIBED,
    *,
    status: int = 0,
    shared: str = "--leader-elect",
) -> Found:
    """Run the doctor as a user with only these permissions."""
    users = f"{{publish: {json.dumps(publish)}, subscribe: {json.dumps(subscribe)}}}"
    config = f"authorization {{ users [{{user: a, password: b, permissions: {users}}}] }}"
    async with NatsServer(tmp_path / "guarded", config=config) as server:
        natsctl = Natsctl(folder, server.url.replace("//", "//a:b@"))
        return await examined(natsctl, "-c", GREETINGS, shared, status=status)


@pytest.mark.parametrize("option", ["--leader-elect", "--shard"])
async def test_several_processes_need_permission_to_watch_the_leases(
    folder: Path, tmp_path: Path, option: str
) -> None:
    assert problems(await examined_as(folder, tmp_path / "all", shared=option)) == []
    for missing in LEASES:
        remaining = [entry for entry in ALLOWED if entry != missing]
        findings = await examined_as(folder, tmp_path / "some", remaining, shared=option, status=1)
        assert problems(findings) == ["permissions natsctl_leases"]
        assert (
            missing.replace(">", "*").partition("*")[0] in findings["permissions natsctl_leases"][1]
        )


async def test_the_documented_user_of_a_daemon_lacks_only_permission_to_read_limits(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    page = (ROOT / "docs" / "permissions.md").read_text()
    config = page.partition("```conf\n")[2].partition("```")[0]
    for user in ("DAEMON", "OPERATOR", "VIEWER"):
        monkeypatch.setenv(f"{user}_PASSWORD", "s3cret")
    async with NatsServer(tmp_path / "documented", config=config) as server:
        words = ("--user", "daemon", "--password", "s3cret", "-c", GREETINGS)
        findings = await examined(Natsctl(folder, server.url), *words, status=0)
    assert problems(findings) == ["jetstream limits"]
    assert findings["jetstream limits"][0] == "warning"


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
        ("$KV.natsctl_leases.greetings.>", "permissions natsctl_leases"),
        ("natsctl.events.greetings.>", "permissions of events"),
        (f"{API}.STREAM.CREATE.natsctl_events", "permissions of events"),
        (f"{API}.STREAM.INFO.natsctl_events", "event stream"),
    ],
)
async def test_doctor_reports_a_missing_permission(
    folder: Path, tmp_path: Path, missing: str, check: str
) -> None:
    reduced = [subject for subject in ALLOWED if subject != missing]
    assert len(reduced) == len(ALLOWED) - 1
    findings = await examined_as(folder, tmp_path, reduced, status=1)
    assert problems(findings) == [check]
    result, finding, advice = findings[check]
    stem = missing.partition("*")[0].removesuffix(".>").removesuffix(".")
    assert result == "failed"
    assert stem in finding
    assert stem in advice


async def test_doctor_reports_a_user_who_may_not_subscribe_to_its_inbox(
    folder: Path, tmp_path: Path
) -> None:
    findings = await examined_as(folder, tmp_path, subscribe=["other.>"], status=1)
    assert problems(findings) == ["nats permissions"]
    assert "_INBOX.>" in findings["nats permissions"][1]


async def test_permission_errors_appear_only_as_findings(folder: Path, tmp_path: Path) -> None:
    config = (
        "authorization { users [{user: a, password: b, "
        'permissions: {publish: ["other"], subscribe: ["_INBOX.>"]}}] }'
    )
    async with NatsServer(tmp_path / "closed", config=config) as server:
        ended = await Natsctl(folder, server.url.replace("//", "//a:b@"))("doctor", "-c", GREETINGS)
    assert ended.status == 1
    assert "failed  bucket greetings: " in ended.out
    assert ended.err == ""


# ---- requests to daemons


@pytest.mark.parametrize(
    ("missing", "expected"),
    [
        ("$SRV.*", "$SRV.*"),
        ("$SRV.*.natsctl", "$SRV.*.natsctl"),
        ("$SRV.*.natsctl.*", "$SRV.*.natsctl.*"),
        ("natsctl.api.>", ", ".join(VERB_SUBJECTS)),
    ],
)
async def test_doctor_warns_if_a_daemon_of_this_user_gets_no_requests(
    folder: Path, tmp_path: Path, missing: str, expected: str
) -> None:
    reduced = [subject for subject in SUBSCRIBED if subject != missing]
    findings = await examined_as(folder, tmp_path, subscribe=reduced)
    assert problems(findings) == ["service"]
    result, finding, advice = findings["service"]
    assert result == "warning"
    assert finding == f"a daemon of this user gets no requests: it may not subscribe to {expected}"
    assert advice.endswith(f"subscribe: {expected}")


@pytest.mark.parametrize(
    ("added", "result", "expected"),
    [
        ([], "ok", "not permitted to this user: only commands such as natsctl status need it"),
        ([DISCOVERY, *VERB_SUBJECTS], "ok", ", ".join(VERBS)),
        (
            [DISCOVERY, *VERB_SUBJECTS[:-1]],
            "ok",
            f"{', '.join(VERBS[:-1])}; not everything: natsctl.api.gc.accept.greetings",
        ),
        (
            VERB_SUBJECTS,
            "warning",
            f"this user may send requests to daemons but not find them: not publish to {DISCOVERY}",
        ),
        (
            [DISCOVERY],
            "warning",
            "this user may find daemons but send no requests: not publish to ALL",
        ),
    ],
)
async def test_doctor_reports_the_requests_that_a_user_may_send_to_daemons(
    folder: Path, tmp_path: Path, *, added: list[str], result: str, expected: str
) -> None:
    findings = await examined_as(folder, tmp_path, [*ALLOWED, *added])
    assert problems(findings) == (["asking daemons"] if result == "warning" else [])
    expected = expected.replace("ALL", ", ".join(VERB_SUBJECTS))
    assert findings["asking daemons"][:2] == (result, expected)


async def test_doctor_does_not_disturb_a_running_daemon(
    natsctl: Natsctl,
    daemon: Callable[..., Awaitable[Running]],
    jetstream: JetStreamContext,
) -> None:
    lasting = ("--leader-elect", "--lease-ttl", "600")  # the daemon leads, however slow it is
    running = await daemon(GREETINGS, options=lasting)
    await natsctl.done("put", "greetings", "shop", '{"spec": {"text": "hi"}}')
    await eventually(lambda: has_one_event(jetstream))

    async def has_synced_once() -> bool:
        statuses = (await natsctl("status", "-o", "json")).json
        return [entry["syncs"] for entry in statuses] == [1]

    await eventually(has_synced_once)
    before = lines_about_work(running)
    findings = await examined(natsctl, "-c", GREETINGS, "--leader-elect", status=0)
    assert problems(findings) == []
    assert findings["bucket natsctl_leases"][1] == "history 1, one replica"
    await eventually(has_synced_once)
    assert lines_about_work(running) == before


def lines_about_work(running: Running) -> list[str]:
    """Return the lines of the log, but for those that a busy machine causes."""
    return [line for line in running.log.splitlines() if "event loop" not in line]


# ---- leases


@pytest.mark.parametrize(
    ("config", "expected"),
    [
        ({}, "leases cannot be written: the bucket does not allow a TTL per message"),
        (
            {"allow_msg_ttl": True, "max_age": 20.0},
            "the record of who works expires 20 s after a change, and then all pause",
        ),
    ],
)
async def test_doctor_reports_a_lease_bucket_that_cannot_hold_leases(
    natsctl: Natsctl, jetstream: JetStreamContext, config: dict[str, Any], expected: str
) -> None:
    await jetstream.add_stream(
        StreamConfig(name="KV_natsctl_leases", subjects=["$KV.natsctl_leases.>"], **config)
    )
    findings = await examined(natsctl, "-c", GREETINGS, "--leader-elect")
    assert problems(findings) == ["bucket natsctl_leases"]
    assert findings["bucket natsctl_leases"][:2] == ("failed", expected)
    assert "delete the bucket" in findings["bucket natsctl_leases"][2]


async def test_a_lease_of_another_application_is_a_failure(
    natsctl: Natsctl, nats_server: NatsServer
) -> None:
    async with connect(nats_server.url) as nats:
        record = Record(3, 1, {"host:1:aa": "1"}, Workload("Site.sites"))
        store = nats.leases(ttl_s=60)
        await store.create(record_key("greetings"), msgspec.json.encode(record))
        findings = await examined(natsctl, "-c", GREETINGS)
    result, finding, _ = findings["lease greetings"]
    assert result == "failed"
    assert "host:1:aa runs another controller that is named greetings too" in finding
    assert "it works on Site.sites, this one on Greeting.greetings" in finding


# ---- buckets


@pytest.mark.parametrize(
    ("config", "found", "advised"),
    [
        (
            {"discard": "old", "max_msgs": 100},
            "it is limited to 100 messages, and once it is full each write deletes the oldest key",
            "--discard new",
        ),
        (
            {"max_age": 10**12, "subject_delete_marker_ttl": 60 * 10**9},
            "the server raises each time to live below 60 s that a client gives a value",
            "--subject-del-markers-ttl 1s",
        ),
    ],
)
async def test_doctor_warns_about_a_bucket_that_loses_keys_or_keeps_them_for_too_long(
    natsctl: Natsctl, nats_server: NatsServer, config: dict[str, Any], found: str, advised: str
) -> None:
    async with Admin(nats_server.url) as admin:
        await admin.create("greetings", **config)
    findings = await examined(natsctl, "-c", GREETINGS, status=0)
    result, text, advice = findings["bucket greetings"]
    assert result == "warning"
    assert found in text
    assert f"nats stream edit KV_greetings {advised}" in advice


async def test_status_shows_buckets_that_lose_keys_or_keep_them_too_long_and_harmful_mirrors(
    natsctl: Natsctl, nats_server: NatsServer
) -> None:
    mirror = {"name": "KV_greetings", "filter_subject": "$KV.greetings.eu.>"}
    async with Admin(nats_server.url) as admin:
        await admin.create("greetings", discard="old", max_msgs=100)
        await admin.create("routes", max_age=10**12, subject_delete_marker_ttl=60 * 10**9)
        config = {"name": "some", "mirror": mirror, "mirror_direct": True}
        await admin.api("STREAM.CREATE.some", config)
    async with natsctl.running("run", "-c", GREETINGS, "--listen=") as daemon:
        await daemon.logged("primaries listed, syncing")
        shown = await natsctl.done("status")
        for text in (
            "greetings: bucket greetings: it is limited to 100 messages, and once it is full each",
            "nats stream edit KV_greetings --discard new",
            "greetings: bucket routes: the server raises each time to live below 60 s",
            "mirrors of greetings: stream some has only some of the keys",
        ):
            assert text in shown
        (status,) = json.loads(await natsctl.done("status", "-o", "json"))
        assert len(status["concerns"]) == 2


async def test_doctor_reports_a_stream_that_takes_the_event_subjects(
    natsctl: Natsctl, jetstream: JetStreamContext
) -> None:
    await jetstream.add_stream(name="everything", subjects=["natsctl.>"])
    findings = await examined(natsctl, "-c", GREETINGS)
    assert problems(findings) == ["event stream"]
    assert findings["event stream"][1] == "stream everything has the subjects natsctl.events.>"


async def test_doctor_reports_offline_replicas_and_buckets_with_one_replica(
    folder: Path, nats_cluster: NatsCluster
) -> None:
    (folder / "many.py").write_text(MANY)
    natsctl = Natsctl(folder, nats_cluster.url)
    async with natsctl.running("run", "-c", "many:Things") as running:
        await running.logged("primaries listed, syncing")
        assert await running.ends(signal.SIGTERM) == 0

    async def reports_one_replica() -> bool:
        findings = await examined(natsctl, "-c", "many:Things", status=0)
        assert problems(findings) == ["bucket one"]
        return "one replica in a cluster" in findings["bucket one"][1]

    await eventually(reports_one_replica)  # another replica may be behind at first
    nats_cluster["n3"].kill()
    await eventually(lambda: reports_an_offline_replica(natsctl))


MANY = """
from natsctl import Controller, Object, kv, primary, tertiary

class Things(Controller):
    things = primary(kv(Object, bucket="things", replicas=3))
    ones = tertiary(kv(Object, bucket="one", replicas=1))

    async def sync_handler(self, key):
        pass
"""


async def reports_an_offline_replica(natsctl: Natsctl) -> bool:
    ended = await natsctl("doctor", "-o", "json", "-c", "many:Things")
    findings: list[dict[str, Any]] = ended.json
    texts = {entry["check"]: entry["found"] for entry in findings}
    assert "of its 3 replicas these are offline or behind: n3" in texts.get("bucket things", ""), (
        texts
    )
    return True


# ---- Kubernetes

FOREIGN = """
from natsctl import Controller, Object, kube, kv, primary, secondary, tertiary

class Things(Controller):
    things = primary(kv(Object, bucket="things"))
    configs = secondary(kube("v1", "ConfigMap", namespace="{namespace}"))
    unicorns = tertiary(kube("fables.example.com/v1", "Unicorn"))

    async def sync_handler(self, key):
        pass
"""
KNOWN = FOREIGN.replace('unicorns = tertiary(kube("fables.example.com/v1", "Unicorn"))', "")


@pytest.fixture
def guest(folder: Path, nats_server: NatsServer, kube_server: KubeCluster) -> Natsctl:
    return Natsctl(folder, nats_server.url, kubeconfig=kube_server.kubeconfig("guest"))


async def test_doctor_reports_a_missing_or_unreachable_cluster(
    natsctl: Natsctl, folder: Path
) -> None:
    (folder / "known.py").write_text(KNOWN.format(namespace="default"))
    words = ("-c", "known:Things")
    none = await examined(natsctl, *words)
    assert problems(none) == ["kubernetes"]
    assert "there is no Kubernetes cluster to connect to" in none["kubernetes"][1]
    away = await examined(natsctl, *words, "--kubeconfig", str(unreachable(folder)))
    assert problems(away) == ["kubernetes"]
    assert "https://127.0.0.1:1" in away["kubernetes"][1]
    forbidden = await examined(natsctl, *words, "--no-kube")
    assert "ConfigMap is kept there, and --no-kube" in forbidden["kubernetes"][1]


async def test_doctor_reports_a_kind_that_the_cluster_does_not_have(
    folder: Path, nats_server: NatsServer, kube_server: KubeCluster, kube_namespace: str
) -> None:
    (folder / "foreign.py").write_text(FOREIGN.format(namespace=kube_namespace))
    admin = Natsctl(folder, nats_server.url, kubeconfig=kube_server.kubeconfig())
    findings = await examined(admin, "-c", "foreign:Things")
    assert problems(findings) == ["kind Unicorn.fables.example.com"]
    assert "the server has no API group" in findings["kind Unicorn.fables.example.com"][1]
    assert findings["kind ConfigMap"][1] == "configmaps of v1"
    assert findings["kubernetes clock"][1] == "equal to the local clock"
    system = await kube_server.call("GET", "/api/v1/namespaces/kube-system")
    assert findings["kubernetes identity"][1] == system["metadata"]["uid"]


async def test_doctor_reports_missing_permissions_until_the_rbac_output_is_granted(
    guest: Natsctl, folder: Path, kube_server: KubeCluster, kube_namespace: str
) -> None:
    (folder / "known.py").write_text(KNOWN.format(namespace=kube_namespace))
    findings = await examined(guest, "-c", "known:Things")
    assert problems(findings)[-1] == "kubernetes permissions"
    ended = await guest("doctor", "-c", "known:Things")
    place = f"in namespace '{kube_namespace}'"
    verbs = "get, list, watch, create, patch, delete"
    assert f"failed  kubernetes permissions: may not {verbs} configmaps {place}\n" in ended.out
    assert f"may not create, patch events.events.k8s.io {place}\n" in ended.out
    assert "→ grant what natsctl rbac prints" in ended.out

    printed = json.loads(await guest.done("rbac", "-c", "known:Things", "-o", "json"))
    about_cluster, own = printed["items"]
    kube_server.allow("guest", about_cluster["rules"], namespace="kube-system")
    rules = own["rules"]
    partial = [
        {**rule, "verbs": [verb for verb in rule["verbs"] if verb != "delete"]} for rule in rules
    ]
    kube_server.allow("guest", partial, namespace=kube_namespace)
    findings = await eventually(lambda: remaining(guest))
    assert findings["kubernetes permissions"][1] == f"may not delete configmaps {place}"
    kube_server.allow("guest", rules, namespace=kube_namespace)
    await eventually(lambda: granted(guest))


async def remaining(guest: Natsctl) -> Found:
    findings = await examined(guest, "-c", "known:Things")
    assert "may not delete" in findings["kubernetes permissions"][1]
    return findings


async def granted(guest: Natsctl) -> bool:
    findings = await examined(guest, "-c", "known:Things", status=0)
    assert problems(findings) == []
    return findings["kubernetes permissions"][1] == "all 8 that natsctl rbac prints"
