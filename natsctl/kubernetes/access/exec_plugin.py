"""What a credential plugin of a kubeconfig says who we are."""

import asyncio
import json
import os
import signal
from contextlib import suppress
from datetime import UTC, datetime

import msgspec

from natsctl.errors import DECODE_ERRORS, ConnectError, UsageError
from natsctl.kubernetes.access.kubeconfig import ClusterEntry, Exec

OUTPUT_MAX = 1024 * 1024  # bytes of a credential
END_S = 5.0  # in which one that was killed is gone

_CONFIG = "client.authentication.k8s.io/exec"  # the cluster's extension meant for plugins


class Credential(msgspec.Struct, frozen=True, rename="camel"):
    """What proves who we are: a token, or a certificate and its key (PEM), or both."""

    token: str | None = None
    client_certificate_data: str | None = None
    client_key_data: str | None = None
    expiration_timestamp: datetime | None = None

    def __repr__(self) -> str:
        return "Credential(***)"

    @property
    def lasts_s(self) -> float | None:
        """The seconds until it expires, below 0 if it has; None: nobody knows."""
        if self.expiration_timestamp is None:
            return None
        expires_at = self.expiration_timestamp
        if expires_at.tzinfo is None:
            expires_at = expires_at.replace(tzinfo=UTC)
        return (expires_at - datetime.now(UTC)).total_seconds()


class _Answer(msgspec.Struct, frozen=True, rename="camel"):
    api_version: str
    kind: str
    status: Credential


async def ask_plugin(plugin: Exec, cluster: ClusterEntry, *, timeout_s: float) -> Credential:
    """Run the plugin and return the credential that it prints.

    What it says on standard error goes to ours: it is meant for people. It gets no input, and
    does not outlive this call.

    Raises `UsageError` where there is no such program, and `ConnectError` where it fails, takes
    longer than *timeout_s*, or prints something else. Texts never quote what it prints.
    """
    if plugin.interactive_mode == "Always":
        raise UsageError(f"credential plugin {plugin.command} wants a terminal, and gets none")
    try:
        async with asyncio.timeout(timeout_s):
            status, output = await _run(plugin, _environment(plugin, cluster))
    except TimeoutError as error:
        raise ConnectError(
            f"credential plugin {plugin.command} is not done within {timeout_s:g} s"
        ) from error
    if status != 0:
        raise ConnectError(f"credential plugin {plugin.command} failed with status {status}")
    return _credential(plugin, output)


async def _run(plugin: Exec, environment: dict[str, str]) -> tuple[int, bytes]:
    try:
        process = await asyncio.create_subprocess_exec(
            plugin.command,
            *(plugin.args or ()),
            env=environment,
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            start_new_session=True,
        )
    except OSError as error:
        hint = f"; {plugin.install_hint.strip()}" if plugin.install_hint else ""
        raise UsageError(
            f"credential plugin {plugin.command} cannot be run: {error.strerror}{hint}"
        ) from error
    assert process.stdout is not None  # noqa: S101 - it is a pipe
    try:
        output = bytearray()
        while len(output) <= OUTPUT_MAX and (chunk := await process.stdout.read(65_536)):
            output += chunk
        if len(output) > OUTPUT_MAX:
            raise ConnectError(f"credential plugin {plugin.command} prints without end")
        return await process.wait(), bytes(output)
    finally:
        if process.returncode is None:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            await _ended(process, process.stdout)


async def _ended(process: asyncio.subprocess.Process, output: asyncio.StreamReader) -> None:
    """Wait until the process is gone; as long as its output is not read, its pipe stays open."""
    with suppress(TimeoutError):
        async with asyncio.timeout(END_S):
            while await output.read(OUTPUT_MAX):
                pass
            await process.wait()


def _environment(plugin: Exec, cluster: ClusterEntry) -> dict[str, str]:
    spec: dict[str, object] = {"interactive": False}
    if plugin.provide_cluster_info:
        spec["cluster"] = _about(cluster)
    told = {"apiVersion": plugin.api_version, "kind": "ExecCredential", "spec": spec}
    own = {variable.name: variable.value for variable in plugin.env or ()}
    return {**os.environ, **own, "KUBERNETES_EXEC_INFO": json.dumps(told)}


def _about(cluster: ClusterEntry) -> dict[str, object]:
    about: dict[str, object] = {
        "server": cluster.server,
        "tls-server-name": cluster.tls_server_name,
        "insecure-skip-tls-verify": cluster.insecure_skip_tls_verify or None,
        "certificate-authority-data": cluster.authority_data(),
        "proxy-url": cluster.proxy_url,
        "config": next(
            (entry.extension for entry in cluster.extensions or () if entry.name == _CONFIG), None
        ),
    }
    return {name: value for name, value in about.items() if value is not None}


def _credential(plugin: Exec, output: bytes) -> Credential:
    try:
        answer = msgspec.json.decode(output, type=_Answer)
    except DECODE_ERRORS:
        raise ConnectError(
            f"credential plugin {plugin.command} prints no ExecCredential with a status"
        ) from None  # the cause may quote a secret
    if answer.kind != "ExecCredential" or answer.api_version != plugin.api_version:
        raise ConnectError(
            f"credential plugin {plugin.command} prints {answer.kind} {answer.api_version}, "
            f"not ExecCredential {plugin.api_version}"
        )
    found = answer.status
    if bool(found.client_certificate_data) != bool(found.client_key_data):
        raise ConnectError(
            f"credential plugin {plugin.command} prints a certificate without key, or a key alone"
        )
    if not found.token and not found.client_certificate_data:
        raise ConnectError(f"credential plugin {plugin.command} prints no credential")
    return found
