"""Runs the credential plugin of a kubeconfig and reads the credential that it prints."""

import asyncio
import json
import os
import signal
from contextlib import suppress
from datetime import UTC, datetime

import msgspec

from natsctl.errors import DECODE_ERRORS, ConnectError, UsageError
from natsctl.kubernetes.access.kubeconfig import ClusterEntry, Exec
from natsctl.start_process import start_process

OUTPUT_MAX = 1024 * 1024  # bytes of a plugin's output
END_S = 5.0  # timeout for the end of a killed plugin

_CONFIG = "client.authentication.k8s.io/exec"  # the cluster extension for plugins


class Credential(msgspec.Struct, frozen=True, rename="camel"):
    """A token, or a certificate and its key (PEM), or both."""

    token: str | None = None
    client_certificate_data: str | None = None
    client_key_data: str | None = None
    expiration_timestamp: datetime | None = None

    def __repr__(self) -> str:
        return "Credential(***)"

    @property
    def lifetime_s(self) -> float | None:
        """Seconds until the credential expires, below 0 if it has; None if it has no expiry."""
        if self.expiration_timestamp is None:
            return None
        expires_at = self.expiration_timestamp
        if expires_at.tzinfo is None:
            expires_at = expires_at.replace(tzinfo=UTC)
        return (expires_at - datetime.now(UTC)).total_seconds()


class _ExecCredential(msgspec.Struct, frozen=True, rename="camel"):
    api_version: str
    kind: str
    status: Credential


async def run_plugin(plugin: Exec, cluster: ClusterEntry, *, timeout_s: float) -> Credential:
    """Run the plugin and return the credential that it prints.

    The plugin gets no input, writes its messages to the standard error of this process, and ends
    with this call.

    Raises `UsageError` if the program does not exist, and `ConnectError` if the plugin fails, takes
    longer than *timeout_s*, or prints no credential. Error texts never quote its output.
    """
    if plugin.interactive_mode == "Always":
        raise UsageError(f"{plugin} needs a terminal, and natsctl has none for it")
    try:
        async with asyncio.timeout(timeout_s):
            status, output = await _run(plugin, _environment(plugin, cluster))
    except TimeoutError as error:
        raise ConnectError(f"{plugin} did not end within {timeout_s:g} s") from error
    if status != 0:
        raise ConnectError(f"{plugin} failed with status {status}")
    return _credential(plugin, output)


async def _run(plugin: Exec, environment: dict[str, str]) -> tuple[int, bytes]:
    try:
        process = await start_process(
            plugin.command,
            *(plugin.args or ()),
            env=environment,
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
        )
    except OSError as error:
        hint = f"; {plugin.install_hint.strip()}" if plugin.install_hint else ""
        raise UsageError(f"{plugin} cannot be run: {error.strerror}{hint}") from error
    assert process.stdout is not None  # noqa: S101 - it is a pipe
    try:
        output = bytearray()
        while len(output) <= OUTPUT_MAX and (chunk := await process.stdout.read(65_536)):
            output += chunk
        if len(output) > OUTPUT_MAX:
            raise ConnectError(f"{plugin} prints more than {OUTPUT_MAX} bytes")
        return await process.wait(), bytes(output)
    finally:
        if process.returncode is None:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            await _wait_for_end(process, process.stdout)


async def _wait_for_end(process: asyncio.subprocess.Process, output: asyncio.StreamReader) -> None:
    """Wait until the process has ended; its pipe stays open until its output is read."""
    with suppress(TimeoutError):
        async with asyncio.timeout(END_S):
            while await output.read(OUTPUT_MAX):
                pass
            await process.wait()


def _environment(plugin: Exec, cluster: ClusterEntry) -> dict[str, str]:
    spec: dict[str, object] = {"interactive": False}
    if plugin.provide_cluster_info:
        spec["cluster"] = _cluster_info(cluster)
    info = {"apiVersion": plugin.api_version, "kind": "ExecCredential", "spec": spec}
    plugin_variables = {variable.name: variable.value for variable in plugin.env or ()}
    return {**os.environ, **plugin_variables, "KUBERNETES_EXEC_INFO": json.dumps(info)}


def _cluster_info(cluster: ClusterEntry) -> dict[str, object]:
    info: dict[str, object] = {
        "server": cluster.server,
        "tls-server-name": cluster.tls_server_name,
        "insecure-skip-tls-verify": cluster.insecure_skip_tls_verify or None,
        "certificate-authority-data": cluster.authority_data(),
        "proxy-url": cluster.proxy_url,
        "config": next(
            (entry.extension for entry in cluster.extensions or () if entry.name == _CONFIG), None
        ),
    }
    return {name: value for name, value in info.items() if value is not None}


def _credential(plugin: Exec, output: bytes) -> Credential:
    try:
        printed = msgspec.json.decode(output, type=_ExecCredential)
    except DECODE_ERRORS:
        # the cause may quote a secret
        raise ConnectError(f"{plugin} prints no ExecCredential with a status") from None
    if printed.kind != "ExecCredential" or printed.api_version != plugin.api_version:
        raise ConnectError(
            f"{plugin} prints {printed.kind} {printed.api_version}, "
            f"not ExecCredential {plugin.api_version}"
        )
    credential = printed.status
    if bool(credential.client_certificate_data) != bool(credential.client_key_data):
        raise ConnectError(f"{plugin} prints only one of clientCertificateData and clientKeyData")
    if not credential.token and not credential.client_certificate_data:
        raise ConnectError(f"{plugin} prints no credential")
    return credential
