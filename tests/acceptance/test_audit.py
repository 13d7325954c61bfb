"""`natsctl run` with the Audit controller records each change of a bucket and of a cluster."""

import signal
from pathlib import Path
from typing import Any

import msgspec
import pytest
from nats.js import JetStreamContext
from nats.js.errors import NoKeysError

from tests.support.cli.natsctl_command import Natsctl
from tests.support.eventually import eventually
from tests.support.servers.kube_cluster import KubeCluster
from tests.support.servers.nats_server import NatsServer


async def entries(jetstream: JetStreamContext, key: str) -> list[dict[str, Any]]:
    """Return the audit entries of a key, oldest first."""
    bucket = await jetstream.key_value("audit")
    try:
        return [msgspec.json.decode(entry.value or b"{}") for entry in await bucket.history(key)]
    except NoKeysError:  # also if the server has sent all entries before nats-py asks for them
        return []


@pytest.fixture
def natsctl(
    folder: Path,
    nats_server: NatsServer,
    kube_server: KubeCluster,
    monkeypatch: pytest.MonkeyPatch,
) -> Natsctl:
    """Run natsctl with one bucket and one kind of the cluster to audit."""
    monkeypatch.setenv("AUDIT_BUCKETS", "shops")
    monkeypatch.setenv("AUDIT_KINDS", "v1/ConfigMap")
    return Natsctl(folder, nats_server.url, kubeconfig=kube_server.kubeconfig())


async def test_audit_records_changes_of_a_bucket_and_of_a_cluster(
    natsctl: Natsctl, jetstream: JetStreamContext, kube_server: KubeCluster, kube_namespace: str
) -> None:
    async with natsctl.running("run", "--controller", "controllers.audit:Audit") as running:
        await running.logged("primaries listed, syncing  controller=audit")
        await natsctl.done("put", "shops", "a", "spec: {text: one}")
        config = {"metadata": {"name": "one"}, "data": {"a": "1"}}
        path = f"/api/v1/namespaces/{kube_namespace}/configmaps?fieldManager=ann"
        await kube_server.call("POST", path, config)

        async def recorded() -> bool:
            from_bucket = await entries(jetstream, "shops.a")
            from_cluster = await entries(jetstream, f"ConfigMap.{kube_namespace}/one")
            assert [entry["action"] for entry in from_bucket] == ["created"]
            assert [(entry["action"], entry["by"]) for entry in from_cluster] == [
                ("created", ["ann"])
            ]
            return True

        await eventually(recorded)
        assert await running.ends(signal.SIGTERM) == 0
