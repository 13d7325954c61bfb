"""`natsctl doctor` reports problems of a set-up with advice, and changes nothing."""

import json
import signal
from pathlib import Path
from typing import Any

import pytest

from tests.support.cli.natsctl_command import Natsctl
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


# ---- buckets


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
