"""The requests, users and audited writes of a Kubernetes cluster for tests."""

import asyncio
import http.client
import itertools
import json
import os
import re
import select
import ssl
import time
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import urlsplit

import yaml

CALL_S = 30.0
RULES_S = 60.0
POLL_S = 0.02

RBAC = "/apis/rbac.authorization.k8s.io/v1"
RULES_REVIEWS = "/apis/authorization.k8s.io/v1/selfsubjectrulesreviews"
RULES_REVIEW = {"apiVersion": "authorization.k8s.io/v1", "kind": "SelfSubjectRulesReview"}

USERS = {"admin": "system:masters", "guest": "guests", "other": "guests"}
WRITES = ("create", "update", "patch", "delete", "deletecollection")

AUDIT_POLICY = {
    "apiVersion": "audit.k8s.io/v1",
    "kind": "Policy",
    "omitStages": ["RequestReceived"],
    "rules": [{"level": "None", "userGroups": ["system:serviceaccounts"]}, {"level": "Metadata"}],
}


class Write(NamedTuple):
    """A completed write request from the audit log."""

    verb: str
    resource: str
    subresource: str
    namespace: str
    name: str
    user: str
    status: int


class KubeCluster:
    """A running kube-apiserver, as a process or in a container.

    The users `admin` (who may do anything), `guest` and `other` (who may do nothing) each have a
    token, and `admin` a client certificate. The files of the server about users are in `folder`.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.tokens = {user: f"token-of-{user}-{os.urandom(8).hex()}" for user in USERS}
        self._files = itertools.count()
        self._context: ssl.SSLContext | None = None
        self._idle: list[http.client.HTTPSConnection] = []
        folder.mkdir(parents=True, exist_ok=True)
        lines = (f"{self.tokens[user]},{user},{user},{group}\n" for user, group in USERS.items())
        (folder / "tokens.csv").write_text("".join(lines))
        (folder / "policy.yaml").write_text(yaml.safe_dump(AUDIT_POLICY))

    @property
    def url(self) -> str:
        """The URL of the server, whether it runs or not."""
        raise NotImplementedError

    @property
    def ca(self) -> Path:
        """The CA certificate of the server."""
        return self.folder / "ca.pem"

    @property
    def audit_log(self) -> Path:
        """The file of the server's audit log."""
        return self.folder / "audit.log"

    @property
    def admin_token(self) -> str:
        """The token of `admin`, a user with all permissions."""
        return self.tokens["admin"]

    def certificate(self, user: str) -> tuple[Path, Path]:
        """Return the files of a client certificate of *user*, and of its key."""
        raise NotImplementedError

    def request(
        self,
        method: str,
        path: str,
        body: object = None,
        *,
        user: str = "admin",
        content_type: str = "application/json",
    ) -> dict[str, Any]:
        """Send a request, check that its status is 2xx, and return the JSON response."""
        headers = {"Authorization": f"Bearer {self.tokens[user]}", "Content-Type": content_type}
        data = None if body is None else json.dumps(body)
        status, response = self._exchange(method, path, data, headers)
        assert status < http.HTTPStatus.MULTIPLE_CHOICES, f"{method} {path}: {status} {response!r}"
        return dict(json.loads(response))

    async def call(
        self, method: str, path: str, body: object = None, **options: str
    ) -> dict[str, Any]:
        """Send a request as `request` does, without blocking the event loop."""
        return await asyncio.to_thread(self.request, method, path, body, **options)

    def lists_within_watches(self) -> bool:
        """Return whether the server lists within a watch instead of in pages."""
        version = self.request("GET", "/version")
        numbers = (re.match(r"\d+", version[part]) for part in ("major", "minor"))
        return tuple(int(number[0]) for number in numbers if number) >= (1, 32)

    def new_namespace(self) -> str:
        """Create a namespace with a new name, and return the name."""
        name = f"test-{next(self._files)}"
        self.request("POST", "/api/v1/namespaces", {"metadata": {"name": name}})
        return name

    def allow(self, user: str, rules: Sequence[Mapping[str, object]], *, namespace: str) -> None:
        """Grant the *rules* of a Role to *user* in *namespace*, and wait until they hold."""
        prefix = f"{RBAC}/namespaces/{namespace}"
        api = {"apiVersion": "rbac.authorization.k8s.io/v1"}
        metadata = {"name": f"{user}-{next(self._files)}"}
        subject = {"kind": "User", "name": user, "apiGroup": "rbac.authorization.k8s.io"}
        role = {
            "kind": "Role",
            "name": metadata["name"],
            "apiGroup": "rbac.authorization.k8s.io",
        }
        self.request("POST", f"{prefix}/roles", {**api, "metadata": metadata, "rules": list(rules)})
        self.request(
            "POST",
            f"{prefix}/rolebindings",
            {**api, "metadata": metadata, "roleRef": role, "subjects": [subject]},
        )
        self.wait_for_rules(user, rules, namespace=namespace)

    def wait_for_rules(
        self,
        user: str,
        rules: Sequence[Mapping[str, object]],
        *,
        namespace: str = "default",
        granted: bool = True,
    ) -> None:
        """Wait until the server grants *user* these rules, or grants none of them any more.

        The server reads roles through a watch, so a new role holds a little later.
        """
        deadline = time.monotonic() + RULES_S
        wanted = [_rule(rule) for rule in rules]
        review = {**RULES_REVIEW, "spec": {"namespace": namespace}}
        while True:
            held = self.request("POST", RULES_REVIEWS, review, user=user)["status"]
            present = [_rule(rule) for rule in held["resourceRules"]]
            if all((rule in present) is granted for rule in wanted):
                return
            assert time.monotonic() < deadline, f"granted to {user}: {present}, not {wanted}"
            time.sleep(POLL_S)

    def kubeconfig(self, user: str = "admin", *, namespace: str | None = None) -> Path:
        """Write a kubeconfig for *user*, with a token, and return its path."""
        context = {"cluster": "tests", "user": user}
        if namespace is not None:
            context["namespace"] = namespace
        cluster = {"server": self.url, "certificate-authority": str(self.ca)}
        config = {
            "apiVersion": "v1",
            "kind": "Config",
            "current-context": "tests",
            "contexts": [{"name": "tests", "context": context}],
            "clusters": [{"name": "tests", "cluster": cluster}],
            "users": [{"name": user, "user": {"token": self.tokens[user]}}],
        }
        return self._new_file("kubeconfig", yaml.safe_dump(config).encode())

    def mark(self) -> int:
        """Return the current position in the audit log, for `writes(since=...)`.

        The server answers a request before it logs it. So this method waits until its own request
        is logged, which follows all answered ones.
        """
        mark = f"mark={os.urandom(8).hex()}"
        self.request("GET", f"/version?{mark}")
        deadline = time.monotonic() + CALL_S
        while not (logged := self._logged_until(mark.encode())):
            assert time.monotonic() < deadline, "the request of the mark is not logged"
            time.sleep(POLL_S)
        return logged

    def _logged_until(self, text: bytes) -> int:
        """Return the end of the line of the audit log with this text, 0 before it is logged."""
        log = self.audit_log.read_bytes()
        begin = log.find(text)
        return log.find(b"\n", begin) + 1 if begin >= 0 else 0

    def writes(self, since: int = 0, *, namespace: str | None = None) -> list[Write]:
        """Return the writes of the test users since a mark, in the order of their responses."""
        with self.audit_log.open("rb") as file:
            file.seek(since)
            lines = [line for line in file if line.endswith(b"\n")]
        writes = [_write(entry) for line in lines if (entry := json.loads(line))["verb"] in WRITES]
        return [
            write
            for write in writes
            if write.user in USERS and namespace in {None, write.namespace}
        ]

    def _new_file(self, kind: str, content: bytes) -> Path:
        file = self.folder / f"{next(self._files)}.{kind}"
        file.write_bytes(content)
        return file

    def _exchange(
        self, method: str, path: str, body: str | None, headers: dict[str, str]
    ) -> tuple[int, bytes]:
        """Send a request through a connection that is idle, if there is one.

        A TLS handshake takes more processor time than most requests.
        """
        connection = self._idle_connection() or self._new_connection()
        try:
            connection.request(method, path, body, headers)
            response = connection.getresponse()
            answer = response.status, response.read()
        except BaseException:
            connection.close()
            raise
        self._idle.append(connection)
        return answer

    def disconnect(self) -> None:
        """Close the idle connections."""
        while self._idle:
            self._idle.pop().close()

    def _idle_connection(self) -> http.client.HTTPSConnection | None:
        """Return an idle connection that the server has not closed."""
        with suppress(IndexError):  # other threads take connections too
            while connection := self._idle.pop():
                if connection.sock and not select.select([connection.sock], [], [], 0)[0]:
                    return connection
                connection.close()
        return None

    def _new_connection(self) -> http.client.HTTPSConnection:
        if self._context is None:
            self._context = ssl.create_default_context(cafile=str(self.ca))
        host = urlsplit(self.url).netloc
        return http.client.HTTPSConnection(host, timeout=CALL_S, context=self._context)


@asynccontextmanager
async def cluster_role(
    server: KubeCluster, role: Mapping[str, Any], binding: Mapping[str, Any]
) -> AsyncIterator[None]:
    """Create the cluster role and its binding, and delete them at the end.

    The rules hold for the users of the binding while the context lasts, and not after it.
    """
    manifests = {f"{RBAC}/clusterroles": role, f"{RBAC}/clusterrolebindings": binding}

    async def wait_for_rules(*, granted: bool) -> None:
        for subject in binding["subjects"]:
            await asyncio.to_thread(
                server.wait_for_rules, subject["name"], role["rules"], granted=granted
            )

    for path, manifest in manifests.items():
        await server.call("POST", path, manifest)
    try:
        await wait_for_rules(granted=True)
        yield
    finally:
        for path, manifest in manifests.items():
            await server.call("DELETE", f"{path}/{manifest['metadata']['name']}")
        await wait_for_rules(granted=False)


def _rule(rule: Mapping[str, Any]) -> dict[str, list[str]]:
    """Return the rule in a form that can be compared."""
    names = ("verbs", "apiGroups", "resources", "resourceNames")
    return {name: sorted(rule.get(name) or ()) for name in names}


def _write(entry: Mapping[str, Any]) -> Write:
    reference = entry.get("objectRef", {})
    path = urlsplit(entry["requestURI"]).path
    return Write(
        verb=entry["verb"],
        resource=reference.get("resource", ""),
        subresource=reference.get("subresource", ""),
        namespace=reference.get("namespace", ""),
        name=reference.get("name", path.rpartition("/")[2]),
        user=entry["user"]["username"],
        status=entry.get("responseStatus", {}).get("code", 0),
    )
