"""The table of well-known kinds equals the discovery of a real server."""

from collections.abc import Iterator

from natsctl.kubernetes.names import well_known
from tests.support.servers.kube_cluster import KubeCluster


def served(server: KubeCluster) -> Iterator[tuple[str, str, str, bool]]:
    """Return the version, kind, plural and scope of each kind that supports watch."""
    groups = server.request("GET", "/apis")["groups"]
    versions = [version["groupVersion"] for group in groups for version in group["versions"]]
    for path, version in (
        ("/api/v1", "v1"),
        *((f"/apis/{version}", version) for version in versions),
    ):
        for resource in server.request("GET", path)["resources"]:
            if "watch" in resource["verbs"]:
                yield version, resource["kind"], resource["name"], resource["namespaced"]


def test_the_well_known_kinds_match_a_real_server(kube_server: KubeCluster) -> None:
    served_kinds = list(served(kube_server))
    known_names = {(version, kind): well_known(version, kind) for version, kind, *_ in served_kinds}
    known = {
        version_and_kind: (name.plural, name.namespaced)
        for version_and_kind, name in known_names.items()
        if name is not None
    }
    expected = {(version, kind): (plural, scoped) for version, kind, plural, scoped in served_kinds}
    assert known == {version_and_kind: expected[version_and_kind] for version_and_kind in known}
    assert len(known) > 30
