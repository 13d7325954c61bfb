"""Every way that a kubeconfig has to say who we are, with a real kube-apiserver."""

import asyncio
import base64
import json
import os
import sys
from collections.abc import AsyncIterator, Iterator, Mapping
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
import yaml

from natsctl.errors import (
    ConnectError,
    PermissionDeniedError,
    StoreError,
    UsageError,
    WatchBrokenError,
)
from natsctl.kubernetes.access.options import KubeOptions
from natsctl.kubernetes.connect import connecting
from natsctl.kubernetes.http.transport import Transport
from tests.support.eventually import eventually
from tests.support.servers.kube_apiserver import KubeServer
from tests.support.servers.kube_http import answering, in_turn, proxying

ME = "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews"
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
        self.file = folder / "config"  # the last that was written

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

    def plugin(self, script: str, **told: object) -> dict[str, object]:
        """A user whose plugin is a shell script; every run is noted in a file."""
        file = self.folder / "plugin"
        file.write_text(f"#!/bin/sh\necho run >> {self.folder}/runs\n{script}\n")
        file.chmod(0o755)
        version = "client.authentication.k8s.io/v1beta1"
        return {"exec": {"apiVersion": version, "command": "./plugin", **told}}

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


async def may(transport: Transport) -> bool:
    """Whether the server takes us for someone who may do anything."""
    reply = await transport.call("POST", ME, body=REVIEW)
    return bool(json.loads(reply.body)["status"]["allowed"])


async def is_admin(options: KubeOptions) -> bool:
    async with connecting(options) as transport:
        return await may(transport)


async def read_on(stream: AsyncIterator[bytes]) -> None:
    async for _ in stream:
        pass


async def test_a_token_says_who_we_are(kubeconfigs: Kubeconfigs) -> None:
    tokens = kubeconfigs.server.tokens
    assert await is_admin(kubeconfigs.write({"token": tokens["admin"]}))
    assert not await is_admin(kubeconfigs.write({"token": tokens["guest"]}))
    assert await is_admin(kubeconfigs.write({"token": f"{tokens['admin']}\n"}))


async def test_without_credentials_we_are_nobody(kubeconfigs: Kubeconfigs) -> None:
    async with connecting(kubeconfigs.write({})) as transport:
        assert json.loads((await transport.call("GET", "/version")).body)["major"]
        with pytest.raises(PermissionDeniedError, match="system:anonymous"):
            await transport.call("GET", "/api/v1/secrets")


@pytest.mark.parametrize(
    ("user", "cluster", "told"),
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
async def test_credentials_that_make_no_sense_are_said_and_not_quoted(
    tmp_path: Path, user: dict[str, object], cluster: dict[str, object], told: str
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
    with pytest.raises(UsageError, match=told) as raised:
        await is_admin(KubeOptions(kubeconfig=str(file)))
    assert "s3cret" not in str(raised.value)


@pytest.mark.parametrize("inline", [False, True])
async def test_a_client_certificate_says_who_we_are(
    kubeconfigs: Kubeconfigs, *, inline: bool
) -> None:
    certificate, key = kubeconfigs.server.certificate("admin")
    user = {"client-certificate": str(certificate), "client-key": str(key)}
    cluster = {}
    if inline:
        user = {"client-certificate-data": bundle(certificate), "client-key-data": bundle(key)}
        cluster = {"certificate-authority-data": bundle(kubeconfigs.server.ca)}
    assert await is_admin(kubeconfigs.write(user, **cluster))


async def test_no_key_is_left_in_a_file(
    kubeconfigs: Kubeconfigs, monkeypatch: pytest.MonkeyPatch
) -> None:
    scratch = kubeconfigs.folder / "scratch"
    scratch.mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(scratch))
    certificate, key = kubeconfigs.server.certificate("admin")
    user = {"client-certificate-data": bundle(certificate), "client-key-data": bundle(key)}
    async with connecting(kubeconfigs.write(user)) as transport:
        assert await may(transport)
        assert list(scratch.iterdir()) == []


async def test_a_token_that_changes_in_its_file_is_read_anew(kubeconfigs: Kubeconfigs) -> None:
    tokens, file = kubeconfigs.server.tokens, kubeconfigs.folder / "token"
    file.write_text("expired")
    async with connecting(kubeconfigs.write({"tokenFile": "token"})) as transport:
        with pytest.raises(PermissionDeniedError, match="does not accept the credentials"):
            await may(transport)
        file.write_text(f"{tokens['admin']}\n")
        assert await may(transport)  # the refusal alone has it read anew


async def test_a_watch_has_its_credentials_renewed_too(kubeconfigs: Kubeconfigs) -> None:
    file = kubeconfigs.folder / "token"
    file.write_text("expired")
    async with connecting(kubeconfigs.write({"tokenFile": "token"})) as transport:
        file.write_text(kubeconfigs.server.admin_token)
        path = "/api/v1/namespaces"
        async with transport.stream(path, query={"watch": "true"}, silence_s=60) as stream:
            assert b"ADDED" in await anext(stream)


async def test_files_are_read_anew_before_anybody_is_refused(kubeconfigs: Kubeconfigs) -> None:
    tokens, file = kubeconfigs.server.tokens, kubeconfigs.folder / "token"
    file.write_text(tokens["guest"])
    options = kubeconfigs.write({"tokenFile": str(file)})
    options = KubeOptions(kubeconfig=options.kubeconfig, reread_s=0.01)
    async with connecting(options) as transport:
        assert not await may(transport)
        file.write_text(tokens["admin"])
        await eventually(lambda: may(transport))
        file.unlink()
        await asyncio.sleep(0.02)
        assert await may(transport)  # with what we have


async def test_a_plugin_says_who_we_are(kubeconfigs: Kubeconfigs) -> None:
    token = kubeconfigs.server.admin_token
    user = kubeconfigs.plugin(
        'printf \'{"kind": "ExecCredential", "apiVersion": "%s", "status": {"token": "%s"}}\' '
        '"client.authentication.k8s.io/v1beta1" "$GIVEN$1"; '
        f'printf "%s" "$KUBERNETES_EXEC_INFO" > {kubeconfigs.folder}/told',
        args=[token[4:]],
        env=[{"name": "GIVEN", "value": token[:4]}],
        provideClusterInfo=True,
    )
    async with connecting(kubeconfigs.write(user)) as transport:
        assert await may(transport)
        assert await may(transport)
    assert kubeconfigs.runs == 1
    told = json.loads((kubeconfigs.folder / "told").read_text())
    assert told["spec"]["interactive"] is False
    assert told["spec"]["cluster"]["server"] == kubeconfigs.server.url
    authority = told["spec"]["cluster"]["certificate-authority-data"]
    assert base64.b64decode(authority) == kubeconfigs.server.ca.read_bytes()


async def test_a_plugin_may_have_a_certificate(kubeconfigs: Kubeconfigs) -> None:
    certificate, key = kubeconfigs.server.certificate("admin")
    script = kubeconfigs.printing(
        clientCertificateData=certificate.read_text(), clientKeyData=key.read_text()
    )
    assert await is_admin(kubeconfigs.write(kubeconfigs.plugin(script)))


async def test_a_plugin_is_asked_anew_when_its_credential_expires(
    kubeconfigs: Kubeconfigs,
) -> None:
    token = kubeconfigs.server.admin_token
    script = kubeconfigs.printing(token=token, expirationTimestamp="2020-01-01T00:00:00Z")
    async with connecting(kubeconfigs.write(kubeconfigs.plugin(script))) as transport:
        assert kubeconfigs.runs == 1

        async def asked_anew() -> bool:
            assert await may(transport)
            return kubeconfigs.runs > 1

        await eventually(asked_anew)
        kubeconfigs.printing(token=token, expirationTimestamp="2120-01-01T00:00:00Z")
        await eventually(asked_anew)


async def test_a_plugin_is_asked_anew_once_when_we_are_refused(kubeconfigs: Kubeconfigs) -> None:
    user = kubeconfigs.plugin(kubeconfigs.printing(token="expired"))
    async with connecting(kubeconfigs.write(user)) as transport:
        kubeconfigs.printing(token=kubeconfigs.server.admin_token)
        assert all(await asyncio.gather(*(may(transport) for _ in range(10))))
        assert kubeconfigs.runs == 2
        assert await may(transport)
    assert kubeconfigs.runs == 2


async def test_a_refusal_says_why_there_are_no_new_credentials(kubeconfigs: Kubeconfigs) -> None:
    user = kubeconfigs.plugin(kubeconfigs.printing(token="expired"))
    async with connecting(kubeconfigs.write(user)) as transport:
        (kubeconfigs.folder / "credential").unlink()
        with pytest.raises(PermissionDeniedError, match="failed with status 1"):
            await may(transport)


@pytest.mark.parametrize(
    ("script", "why"),
    [
        ("exit 3", "failed with status 3"),
        ("echo s3cret", "prints no ExecCredential"),
        ('echo \'{"kind": 7, "status": "s3cret"}\'', "prints no ExecCredential"),
        ("yes s3cret", "prints more than 1048576 bytes"),
        ("sleep 3600; echo late", "did not end within 0.2 s"),
    ],
)
async def test_a_plugin_that_fails_is_named_and_not_quoted(
    kubeconfigs: Kubeconfigs, script: str, why: str
) -> None:
    path = kubeconfigs.write(kubeconfigs.plugin(script)).kubeconfig
    timeout_s = 0.2 if "sleep" in script else 60
    with pytest.raises(ConnectError, match=why) as raised:
        await is_admin(KubeOptions(kubeconfig=path, plugin_timeout_s=timeout_s))
    assert "plugin" in str(raised.value)
    assert "s3cret" not in str(raised.value)


async def test_a_plugin_that_is_not_there_comes_with_its_hint(kubeconfigs: Kubeconfigs) -> None:
    version = "client.authentication.k8s.io/v1"
    plugin = {"apiVersion": version, "command": "no-such-plugin", "installHint": "get it there"}
    with pytest.raises(UsageError, match=r"no-such-plugin cannot be run.*get it there"):
        await is_admin(kubeconfigs.write({"exec": plugin}))


async def test_an_unknown_authority_is_refused_unless_nobody_looks(
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


async def test_the_name_on_the_certificate_may_be_another(kubeconfigs: Kubeconfigs) -> None:
    user = {"token": kubeconfigs.server.admin_token}
    assert await is_admin(kubeconfigs.write(user, **{"tls-server-name": "kube.test"}))
    with pytest.raises(StoreError, match="certificate is not accepted"):
        await is_admin(kubeconfigs.write(user, **{"tls-server-name": "other.test"}))


async def test_the_context_decides(
    kubeconfigs: Kubeconfigs, monkeypatch: pytest.MonkeyPatch
) -> None:
    tokens = kubeconfigs.server.tokens
    admin = kubeconfigs.write({"token": tokens["admin"]}, "one").kubeconfig
    guest = kubeconfigs.write({"token": tokens["guest"]}, "two").kubeconfig
    monkeypatch.setenv("KUBECONFIG", os.pathsep.join([guest, "/not/there", admin]))  # type: ignore[list-item]
    assert not await is_admin(KubeOptions())
    assert await is_admin(KubeOptions(context="one"))
    with pytest.raises(UsageError, match="no context 'on'; known are one, two"):
        await is_admin(KubeOptions(context="on"))


async def test_whoever_changes_the_current_context_does_not_lead_us_elsewhere(
    kubeconfigs: Kubeconfigs,
) -> None:
    """Credentials are read anew from the context with which we began."""
    options = kubeconfigs.write({"token": "expired"}, "config")
    async with answering(in_turn()) as elsewhere, connecting(options) as transport:
        content = yaml.safe_load(kubeconfigs.file.read_text())
        content["current-context"] = "other"
        content["users"][0]["user"]["token"] = kubeconfigs.server.admin_token
        content["contexts"].append({"name": "other", "context": {"cluster": "other"}})
        content["clusters"].append({"name": "other", "cluster": {"server": elsewhere.url}})
        kubeconfigs.file.write_text(yaml.safe_dump(content))
        assert await may(transport)
    assert elsewhere.requests == []


async def test_we_may_act_as_another(kubeconfigs: Kubeconfigs) -> None:
    token = kubeconfigs.server.admin_token
    assert not await is_admin(kubeconfigs.write({"token": token, "as": "guest"}))
    groups = ["guests", "system:masters"]
    assert await is_admin(kubeconfigs.write({"token": token, "as": "guest", "as-groups": groups}))


async def test_a_server_and_a_token_are_enough(kube_server: KubeServer) -> None:
    assert await is_admin(
        KubeOptions(
            server=kube_server.url, token=kube_server.admin_token, tls_ca=str(kube_server.ca)
        )
    )


async def test_the_namespace_is_the_context_s_or_default(kube_server: KubeServer) -> None:
    for options, namespace in (
        (KubeOptions(kubeconfig=str(kube_server.kubeconfig())), "default"),
        (KubeOptions(kubeconfig=str(kube_server.kubeconfig(namespace="shop"))), "shop"),
        (KubeOptions(kubeconfig=str(kube_server.kubeconfig()), namespace="own"), "own"),
    ):
        async with connecting(options) as transport:
            assert transport.namespace == namespace
            assert transport.server == kube_server.url


class Pod:
    """What a pod finds of its service account."""

    def __init__(self, server: KubeServer, folder: Path) -> None:
        self.folder = folder
        folder.mkdir()
        (folder / "ca.crt").write_bytes(server.ca.read_bytes())
        (folder / "namespace").write_text("shop")

    def token(self, token: str) -> None:
        (self.folder / "token").write_text(f"{token}\n")


@pytest.fixture
def pod(kube_server: KubeServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Pod]:
    monkeypatch.setenv("KUBERNETES_SERVICE_HOST", "127.0.0.1")
    monkeypatch.setenv("KUBERNETES_SERVICE_PORT", str(kube_server.port))
    return Pod(kube_server, tmp_path / "account")  # type: ignore[return-value]


async def test_in_a_pod_the_service_account_is_used_and_its_token_rotates(
    pod: Pod, kube_server: KubeServer
) -> None:
    pod.token(kube_server.tokens["guest"])
    options = KubeOptions(service_account=str(pod.folder), reread_s=0.01)
    async with connecting(options) as transport:
        assert transport.namespace == "shop"
        assert not await may(transport)
        pod.token(kube_server.admin_token)
        await eventually(lambda: may(transport))
        pod.token("expired")
        await asyncio.sleep(0.02)
        with pytest.raises(PermissionDeniedError):
            await may(transport)


async def test_a_kubeconfig_that_comes_up_later_leads_nobody_out_of_the_pod(
    pod: Pod, kube_server: KubeServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    pod.token("expired")
    async with connecting(KubeOptions(service_account=str(pod.folder))) as transport:
        monkeypatch.setenv("KUBECONFIG", str(kube_server.kubeconfig("guest")))
        pod.token(kube_server.admin_token)
        assert await may(transport)


async def test_a_pod_without_a_token_is_told_so(pod: Pod) -> None:
    with pytest.raises(UsageError, match="token file does not exist"):
        await is_admin(KubeOptions(service_account=str(pod.folder)))


async def test_where_there_is_no_cluster_that_is_said() -> None:
    with pytest.raises(UsageError, match="no Kubernetes cluster"):
        await is_admin(KubeOptions())


async def test_a_kubeconfig_names_its_proxy(kubeconfigs: Kubeconfigs) -> None:
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


async def test_the_environment_names_a_proxy(
    kubeconfigs: Kubeconfigs, monkeypatch: pytest.MonkeyPatch
) -> None:
    server = f"https://kube.test:{kubeconfigs.server.port}"
    options = kubeconfigs.write({"token": kubeconfigs.server.admin_token}, server=server)
    async with proxying() as proxy:
        monkeypatch.setenv("HTTPS_PROXY", proxy.url)
        assert await is_admin(options)
        assert proxy.asked == [f"kube.test:{kubeconfigs.server.port}"]


async def test_a_watch_goes_through_the_proxy_and_breaks_with_it(
    kubeconfigs: Kubeconfigs,
) -> None:
    user = {"token": kubeconfigs.server.admin_token}
    async with (
        proxying() as proxy,
        connecting(kubeconfigs.write(user, **{"proxy-url": proxy.url})) as transport,
        transport.stream("/api/v1/namespaces", query={"watch": "true"}, silence_s=60) as stream,
    ):
        assert b"ADDED" in await anext(stream)
        proxy.cut()
        with pytest.raises(WatchBrokenError):
            await read_on(stream)
    assert len(proxy.asked) == 1


def test_the_command_line_starts_without_the_client() -> None:
    code = "import sys, natsctl.cli.main; sys.exit('kubernetes' in sys.modules)"
    assert os.spawnv(os.P_WAIT, sys.executable, [sys.executable, "-c", code]) == 0
