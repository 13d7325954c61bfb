"""Every authentication method of a kubeconfig works with a real kube-apiserver."""

import asyncio
import base64
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit
from uuid import uuid4

import pytest
import yaml

from natsctl import KubeOptions, connect_kube
from natsctl.errors import (
    ConnectError,
    PermissionDeniedError,
    StoreError,
    UsageError,
)
from natsctl.kubernetes.cluster import connecting
from natsctl.kubernetes.transport import Transport
from tests.support.eventually import eventually
from tests.support.servers.kube_apiserver import KubeServer
from tests.support.servers.kube_http import proxying

REVIEWS = "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews"
REVIEW = json.dumps(
    {"spec": {"resourceAttributes": {"verb": "get", "resource": "secrets"}}}
).encode()


@pytest.fixture(autouse=True)
def _no_kubeconfig_but_ours(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    for name in ("KUBECONFIG", "KUBERNETES_SERVICE_HOST", "HTTPS_PROXY", "https_proxy"):
        monkeypatch.delenv(name, raising=False)


class Kubeconfigs:
    """Writes kubeconfigs for a server."""

    def __init__(self, server: KubeServer, folder: Path) -> None:
        self.server = server
        self.folder = folder
        self.file = folder / "config"  # the last written file

    def write(
        self, user: Mapping[str, object], name: str = "config", **cluster: Any
    ) -> KubeOptions:
        known = {"server": self.server.url, "certificate-authority": str(self.server.ca)}
        self.file = self.folder / name
        self.file.write_text(
            yaml.safe_dump(
                {
                    "current-context": name,
                    "contexts": [{"name": name, "context": {"cluster": name, "user": name}}],
                    "clusters": [{"name": name, "cluster": {**known, **cluster}}],
                    "users": [{"name": name, "user": user}],
                }
            )
        )
        return KubeOptions(kubeconfig=str(self.file))

    def plugin(self, script: str, **fields: object) -> dict[str, object]:
        """Return a user with a shell script as exec plugin. Each run is recorded in a file."""
        file = self.folder / "plugin"
        file.write_text(f"#!/bin/sh\necho run >> {self.folder}/runs\n{script}\n")
        file.chmod(0o755)
        version = "client.authentication.k8s.io/v1beta1"
        return {"exec": {"apiVersion": version, "command": "./plugin", **fields}}

    def printing(self, **status: object) -> str:
        credential = {
            "apiVersion": "client.authentication.k8s.io/v1beta1",
            "kind": "ExecCredential",
            "status": status,
        }
        (self.folder / "credential").write_text(json.dumps(credential))
        return f"cat {self.folder}/credential"

    @property
    def runs(self) -> int:
        file = self.folder / "runs"
        return len(file.read_text().splitlines()) if file.exists() else 0


@pytest.fixture
def kubeconfigs(kube_server: KubeServer, tmp_path: Path) -> Kubeconfigs:
    return Kubeconfigs(kube_server, tmp_path)


def bundle(file: Path) -> str:
    return base64.b64encode(file.read_bytes()).decode()


async def is_allowed_everything(transport: Transport) -> bool:
    """Return whether the server gives this user all permissions."""
    reply = await transport.call("POST", REVIEWS, body=REVIEW)
    return bool(json.loads(reply.body)["status"]["allowed"])


async def is_admin(options: KubeOptions) -> bool:
    async with connecting(options) as transport:
        return await is_allowed_everything(transport)


async def test_a_token_authenticates(kubeconfigs: Kubeconfigs) -> None:
    tokens = kubeconfigs.server.tokens
    assert await is_admin(kubeconfigs.write({"token": tokens["admin"]}))
    assert not await is_admin(kubeconfigs.write({"token": tokens["guest"]}))
    assert await is_admin(kubeconfigs.write({"token": f"{tokens['admin']}\n"}))


async def test_a_token_that_the_server_does_not_know_is_refused_at_once(
    kubeconfigs: Kubeconfigs,
) -> None:
    options = kubeconfigs.write({"token": "s3cret"})
    with pytest.raises(ConnectError, match=r"Kubernetes at .* denies access: ") as raised:
        async with connect_kube(options, wait=True):
            pass
    assert "s3cret" not in str(raised.value)


@pytest.mark.parametrize(
    ("user", "cluster", "message"),
    [
        ({"token": "s3cret s3cret"}, {}, "token has spaces"),
        ({"token": "s3cret\ns3cret"}, {}, "token has spaces"),
        ({"tokenFile": "none"}, {}, "/none, which the kubeconfig names: No such file"),
        ({"client-certificate": "none", "client-key": "none"}, {}, "/none"),
        ({"client-certificate-data": "s3cret!"}, {}, r"data for tls\.crt is not in base64"),
        ({"client-certificate": "junk", "client-key": "junk"}, {}, "not in PEM"),
        ({}, {"certificate-authority": "junk"}, "not in PEM"),
        ({}, {"server": "https://ann:s3cret@kube.test"}, "without user or password"),
        ({}, {"server": "kube.test"}, "is not https://HOST:PORT"),
        ({}, {"proxy-url": "socks5://s3cret@one.test"}, "socks5"),
        ({"exec": {"apiVersion": "v1", "command": "x", "interactiveMode": "Always"}}, {}, "termin"),
        (
            {"auth-provider": {"name": "oidc", "config": {"id-token": "s3cret"}}},
            {},
            "auth-provider is invalid",
        ),
    ],
)
async def test_invalid_credentials_are_reported_without_quoting_them(
    tmp_path: Path, user: dict[str, object], cluster: dict[str, object], message: str
) -> None:
    (tmp_path / "junk").write_text("s3cret")
    content = {
        "current-context": "a",
        "contexts": [{"name": "a", "context": {"cluster": "a", "user": "a"}}],
        "clusters": [{"name": "a", "cluster": {"server": "https://kube.test", **cluster}}],
        "users": [{"name": "a", "user": user}],
    }
    file = tmp_path / "config"
    file.write_text(yaml.safe_dump(content))
    with pytest.raises(UsageError, match=message) as raised:
        await is_admin(KubeOptions(kubeconfig=str(file)))
    assert "s3cret" not in str(raised.value)


async def test_a_client_certificate_authenticates_from_files_or_as_inline_data(
    kubeconfigs: Kubeconfigs, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No private key is left in a temporary file."""
    scratch = kubeconfigs.folder / "scratch"
    scratch.mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(scratch))
    certificate, key = kubeconfigs.server.certificate("admin")
    user = {"client-certificate": str(certificate), "client-key": str(key)}
    assert await is_admin(kubeconfigs.write(user))
    user = {"client-certificate-data": bundle(certificate), "client-key-data": bundle(key)}
    cluster = {"certificate-authority-data": bundle(kubeconfigs.server.ca)}
    async with connecting(kubeconfigs.write(user, **cluster)) as transport:
        assert await is_allowed_everything(transport)
        assert list(scratch.iterdir()) == []


async def test_a_token_file_is_read_again_after_a_refusal_and_at_an_interval(
    kubeconfigs: Kubeconfigs,
) -> None:
    tokens, file = kubeconfigs.server.tokens, kubeconfigs.folder / "token"
    file.write_text("expired")
    async with connecting(kubeconfigs.write({"tokenFile": "token"})) as transport:
        with pytest.raises(PermissionDeniedError, match="does not accept the credentials"):
            await is_allowed_everything(transport)
        file.write_text(f"{tokens['admin']}\n")
        assert await is_allowed_everything(transport)
    file.write_text(tokens["guest"])
    path = kubeconfigs.write({"tokenFile": str(file)}).kubeconfig
    async with connecting(KubeOptions(kubeconfig=path, reread_s=0.01)) as transport:
        assert not await is_allowed_everything(transport)
        file.write_text(tokens["admin"])
        await eventually(lambda: is_allowed_everything(transport))
        file.unlink()
        await asyncio.sleep(0.02)
        assert await is_allowed_everything(transport)  # with the last credentials


async def test_an_exec_plugin_authenticates_with_a_token(kubeconfigs: Kubeconfigs) -> None:
    token = kubeconfigs.server.admin_token
    user = kubeconfigs.plugin(
        'printf \'{"kind": "ExecCredential", "apiVersion": "%s", "status": {"token": "%s"}}\' '
        '"client.authentication.k8s.io/v1beta1" "$GIVEN$1"; '
        f'printf "%s" "$KUBERNETES_EXEC_INFO" > {kubeconfigs.folder}/exec-info',
        args=[token[4:]],
        env=[{"name": "GIVEN", "value": token[:4]}],
        provideClusterInfo=True,
    )
    async with connecting(kubeconfigs.write(user)) as transport:
        assert await is_allowed_everything(transport)
        assert await is_allowed_everything(transport)
    assert kubeconfigs.runs == 1
    exec_info = json.loads((kubeconfigs.folder / "exec-info").read_text())
    assert exec_info["spec"]["interactive"] is False
    assert exec_info["spec"]["cluster"]["server"] == kubeconfigs.server.url
    authority = exec_info["spec"]["cluster"]["certificate-authority-data"]
    assert base64.b64decode(authority) == kubeconfigs.server.ca.read_bytes()


async def test_a_plugin_runs_again_when_its_credential_expires(
    kubeconfigs: Kubeconfigs,
) -> None:
    token = kubeconfigs.server.admin_token
    script = kubeconfigs.printing(token=token, expirationTimestamp="2020-01-01T00:00:00Z")
    async with connecting(kubeconfigs.write(kubeconfigs.plugin(script))) as transport:
        assert kubeconfigs.runs == 1

        async def ran_again() -> bool:
            assert await is_allowed_everything(transport)
            return kubeconfigs.runs > 1

        await eventually(ran_again)
        kubeconfigs.printing(token=token, expirationTimestamp="2120-01-01T00:00:00Z")
        await eventually(ran_again)


async def test_the_error_of_a_failed_plugin_does_not_quote_its_output(
    kubeconfigs: Kubeconfigs,
) -> None:
    for script, message in (
        ("exit 3", "failed with status 3"),
        ("echo s3cret", "prints no ExecCredential"),
        ('echo \'{"kind": 7, "status": "s3cret"}\'', "prints no ExecCredential"),
        ("yes s3cret", "prints more than 1048576 bytes"),
        ("sleep 3600; echo late", "did not end within 0.2 s"),
    ):
        path = kubeconfigs.write(kubeconfigs.plugin(script)).kubeconfig
        timeout_s = 0.2 if "sleep" in script else 60
        with pytest.raises(ConnectError, match=message) as raised:
            await is_admin(KubeOptions(kubeconfig=path, plugin_timeout_s=timeout_s))
        assert "plugin" in str(raised.value)
        assert "s3cret" not in str(raised.value)
    user = kubeconfigs.plugin(kubeconfigs.printing(token="expired"))
    async with connecting(kubeconfigs.write(user)) as transport:
        (kubeconfigs.folder / "credential").unlink()
        with pytest.raises(PermissionDeniedError, match="failed with status 1"):
            await is_allowed_everything(transport)
    version = "client.authentication.k8s.io/v1"
    missing = {"apiVersion": version, "command": "no-such-plugin", "installHint": "get it there"}
    with pytest.raises(UsageError, match=r"no-such-plugin cannot be run.*get it there"):
        await is_admin(kubeconfigs.write({"exec": missing}))


async def test_an_unknown_ca_is_refused_unless_tls_is_insecure(
    kubeconfigs: Kubeconfigs,
) -> None:
    user = {"token": kubeconfigs.server.admin_token}
    unknown = kubeconfigs.write(user, **{"certificate-authority": None})  # type: ignore[arg-type]
    with pytest.raises(StoreError, match=r"certificate is not accepted.*tls_ca"):
        await is_admin(unknown)
    ca = KubeOptions(kubeconfig=unknown.kubeconfig, tls_ca=str(kubeconfigs.server.ca))
    assert await is_admin(ca)
    assert await is_admin(KubeOptions(kubeconfig=unknown.kubeconfig, tls_insecure=True))
    assert await is_admin(
        kubeconfigs.write(user, **{"certificate-authority": None, "insecure-skip-tls-verify": True})  # type: ignore[arg-type]
    )


async def test_impersonation_sends_the_extra_fields_of_the_user(
    kubeconfigs: Kubeconfigs,
) -> None:
    server, extra = kubeconfigs.server, {"scopes": ["view", "edit"], "Acme.com/Team": ["a b"]}
    user = {"token": server.admin_token, "as": "guest", "as-user-extra": extra}
    probe = f"extra-{uuid4()}"
    async with connecting(kubeconfigs.write(user)) as transport:
        await transport.call("GET", "/version", query={"probe": probe})
    server.mark()  # until the request is logged
    [line] = [line for line in server.audit_log.read_text().splitlines() if probe in line]
    impersonated = json.loads(line)["impersonatedUser"]
    assert impersonated["username"] == "guest"
    assert impersonated["extra"] == {"scopes": ["view", "edit"], "acme.com/team": ["a b"]}


async def test_in_a_pod_the_service_account_is_used_and_its_token_rotates(
    kube_server: KubeServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("KUBERNETES_SERVICE_HOST", "127.0.0.1")
    monkeypatch.setenv("KUBERNETES_SERVICE_PORT", str(kube_server.port))
    (tmp_path / "ca.crt").write_bytes(kube_server.ca.read_bytes())
    (tmp_path / "namespace").write_text("shop")
    token = tmp_path / "token"
    token.write_text(f"{kube_server.tokens['guest']}\n")
    options = KubeOptions(service_account=str(tmp_path), reread_s=0.01)
    async with connecting(options) as transport:
        assert transport.namespace == "shop"
        assert not await is_allowed_everything(transport)
        token.write_text(f"{kube_server.admin_token}\n")
        await eventually(lambda: is_allowed_everything(transport))
        token.write_text("expired\n")
        await asyncio.sleep(0.02)
        with pytest.raises(PermissionDeniedError):
            await is_allowed_everything(transport)


async def test_the_proxy_of_the_kubeconfig_is_used(kubeconfigs: Kubeconfigs) -> None:
    token = kubeconfigs.server.admin_token
    async with proxying() as proxy:
        named = proxy.url.replace("//", "//ann:s3cret@")
        assert await is_admin(kubeconfigs.write({"token": token}, **{"proxy-url": named}))
        assert proxy.asked == [urlsplit(kubeconfigs.server.url).netloc]
        assert proxy.credentials == ["Basic " + base64.b64encode(b"ann:s3cret").decode()]
    path = kubeconfigs.write({"token": token}, **{"proxy-url": named}).kubeconfig
    with pytest.raises(StoreError, match="the proxy: connection refused") as raised:
        await is_admin(KubeOptions(kubeconfig=path, attempts_max=1))
    assert "s3cret" not in str(raised.value)
