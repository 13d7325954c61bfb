"""What is known without asking is what a real server says."""

from collections.abc import Iterator

from natsctl.kubernetes.resources.names import well_known
from tests.support.servers.kube_cluster import KubeCluster


def served(server: KubeCluster) -> Iterator[tuple[str, str, str, bool]]:
    """Return version, kind, plural and scope of what can be watched on a server."""
    groups = server.request("GET", "/apis")["groups"]
    versions = [each["groupVersion"] for group in groups for each in group["versions"]]
    for path, version in (("/api/v1", "v1"), *((f"/apis/{each}", each) for each in versions)):
        for each in server.request("GET", path)["resources"]:
            if "watch" in each["verbs"]:
                yield version, each["kind"], each["name"], each["namespaced"]


def test_every_known_kind_is_called_as_a_server_calls_it(kube_server: KubeCluster) -> None:
    found = list(served(kube_server))
    ours = {(version, kind): well_known(version, kind) for version, kind, *_ in found}
    known = {of: (name.plural, name.namespaced) for of, name in ours.items() if name is not None}
    theirs = {(version, kind): (plural, scoped) for version, kind, plural, scoped in found}
    assert known == {of: theirs[of] for of in known}
    assert len(known) > 30
