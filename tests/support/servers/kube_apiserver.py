"""A real etcd and kube-apiserver for tests, which can be killed, paused and compacted.

Nothing here uses natsctl. No server outlives the process that started it, however that ends.
"""

import asyncio
import base64
import http.client
import json
import os
import shutil
import signal
import subprocess
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, Self

import trustme

from tests.support.eventually import eventually
from tests.support.servers.kube_cluster import CALL_S, USERS, KubeCluster
from tests.support.servers.ports import free_port
from tests.support.servers.process import dying_with_parent

POLL_S = 0.02
START_S = 240.0
RARE_COLLECTIONS = {"GOGC": "400"}  # a tenth less processor time, for some memory


def assets() -> Path | None:
    """Return the folder with etcd and kube-apiserver that KUBEBUILDER_ASSETS names, if any."""
    folder = os.environ.get("KUBEBUILDER_ASSETS")
    return Path(folder) if folder else None


class KubeServer(KubeCluster):
    """One kube-apiserver with its own etcd: `with KubeServer(folder) as server`.

    Every user may have a client certificate. Ports and data stay the same over restarts.
    `arguments` are additional arguments of the kube-apiserver.
    """

    def __init__(self, folder: Path, *, arguments: Sequence[str] = ()) -> None:
        super().__init__(folder)
        self.port = free_port()
        self._arguments = arguments
        self._etcd_port, self._peer_port = free_port(), free_port()
        self._processes: dict[str, subprocess.Popen[bytes]] = {}
        self._authority = trustme.CA()
        self._write_files()

    def __enter__(self) -> Self:
        try:
            self.launch()
            deadline = time.monotonic() + START_S
            while not self._is_ready():
                assert time.monotonic() < deadline, f"no /readyz in time:\n{self.log()[-2000:]}"
                time.sleep(POLL_S)
        except BaseException:
            self._clean()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self._clean()

    @property
    def url(self) -> str:
        """The URL of the server, whether it runs or not."""
        return f"https://127.0.0.1:{self.port}"

    def launch(self) -> None:
        """Start the processes that do not run, without waiting.

        Must be called in the main thread: processes are killed when the thread that began them
        ends.
        """
        for name, arguments in (
            ("etcd", self._etcd_arguments()),
            ("kube-apiserver", self._apiserver_arguments()),
        ):
            if not self._runs(name):
                self._processes[name] = self._spawn(name, arguments)

    async def start(self) -> None:
        """Start the server with its data and port, and wait until it is ready."""
        self.launch()
        await eventually(
            lambda: asyncio.to_thread(self._is_ready), within_s=START_S, every_s=POLL_S
        )

    def kill(self) -> None:
        """Kill the kube-apiserver (-9), if it runs. etcd keeps running."""
        self._end("kube-apiserver")

    def pause(self) -> None:
        """Suspend the kube-apiserver: connections stay open, and no request is answered.

        Returns when all threads have stopped, because a running one may still answer.
        """
        process = self._processes["kube-apiserver"]
        process.send_signal(signal.SIGSTOP)
        os.waitid(os.P_PID, process.pid, os.WSTOPPED | os.WNOWAIT)

    def resume(self) -> None:
        """Continue the process after a pause."""
        self._processes["kube-apiserver"].send_signal(signal.SIGCONT)

    def compact(self) -> int:
        """Compact etcd to the newest revision, and return this revision.

        The next page of a list is expired then. A watch is expired too, if the kube-apiserver was
        restarted after it or has no cache (`--watch-cache=false`).
        """
        state = self._etcd("range", {"key": base64.b64encode(b"\0").decode()})
        revision = int(state["header"]["revision"])
        done = self._etcd("compaction", {"revision": revision, "physical": True})
        assert "header" in done or "has been compacted" in done["error"], done
        return revision

    def certificate(self, user: str) -> tuple[Path, Path]:
        """Return the files of a client certificate of *user*, and of its key."""
        issued = self._authority.issue_cert(
            f"{user}.test", common_name=user, organization_name=USERS[user]
        )
        certificate = self._new_file("crt", issued.cert_chain_pems[0].bytes())
        return certificate, self._new_file("key", issued.private_key_pem.bytes())

    def log(self) -> str:
        """Return the log of all starts of the kube-apiserver."""
        return (self.folder / "kube-apiserver.log").read_text("utf-8", "replace")

    def _write_files(self) -> None:
        served = self._authority.issue_cert("127.0.0.1", "localhost", "kube.test")
        for name, content in (
            ("ca.pem", self._authority.cert_pem.bytes()),
            ("server.crt", b"".join(pem.bytes() for pem in served.cert_chain_pems)),
            ("server.key", served.private_key_pem.bytes()),
            ("accounts.key", self._authority.private_key_pem.bytes()),
        ):
            (self.folder / name).write_bytes(content)

    def _etcd_arguments(self) -> list[str]:
        client, peer = (f"http://127.0.0.1:{port}" for port in (self._etcd_port, self._peer_port))
        return [
            f"--data-dir={self.folder / 'etcd'}",
            f"--listen-client-urls={client}",
            f"--advertise-client-urls={client}",
            f"--listen-peer-urls={peer}",
            f"--initial-advertise-peer-urls={peer}",
            f"--initial-cluster=default={peer}",
        ]

    def _apiserver_arguments(self) -> list[str]:
        return [
            f"--etcd-servers=http://127.0.0.1:{self._etcd_port}",
            "--bind-address=127.0.0.1",
            "--advertise-address=127.0.0.1",
            f"--secure-port={self.port}",
            f"--cert-dir={self.folder}",
            f"--tls-cert-file={self.folder / 'server.crt'}",
            f"--tls-private-key-file={self.folder / 'server.key'}",
            f"--client-ca-file={self.ca}",
            f"--token-auth-file={self.folder / 'tokens.csv'}",
            "--service-account-issuer=https://kube.test",
            f"--service-account-key-file={self.folder / 'accounts.key'}",
            f"--service-account-signing-key-file={self.folder / 'accounts.key'}",
            "--service-cluster-ip-range=10.0.0.0/24",
            "--endpoint-reconciler-type=none",
            "--authorization-mode=RBAC",
            "--disable-admission-plugins=ServiceAccount",
            f"--audit-policy-file={self.folder / 'policy.yaml'}",
            f"--audit-log-path={self.audit_log}",
            *self._arguments,
        ]

    def _spawn(self, name: str, arguments: Sequence[str]) -> subprocess.Popen[bytes]:
        folder = assets()
        assert folder is not None, "KUBEBUILDER_ASSETS names no folder"
        with (self.folder / f"{name}.log").open("ab") as log:
            return subprocess.Popen(
                dying_with_parent(str(folder / name), *arguments),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env=os.environ | RARE_COLLECTIONS,
            )

    def _runs(self, name: str) -> bool:
        process = self._processes.get(name)
        return process is not None and process.poll() is None

    def _end(self, name: str) -> None:
        if name in self._processes:
            self._processes[name].kill()
            self._processes[name].wait()

    def _clean(self) -> None:
        self.disconnect()
        self._end("kube-apiserver")
        self._end("etcd")
        shutil.rmtree(self.folder / "etcd", ignore_errors=True)

    def _is_ready(self) -> bool:
        for name in self._processes:
            if not self._runs(name):
                log = (self.folder / f"{name}.log").read_text("utf-8", "replace")
                raise RuntimeError(f"{name} did not start:\n{log[-2000:]}")
        with suppress(OSError, http.client.HTTPException):
            headers = {"Authorization": f"Bearer {self.admin_token}"}
            return self._exchange("GET", "/readyz", None, headers)[0] == http.HTTPStatus.OK
        return False

    def _etcd(self, operation: str, body: object) -> dict[str, Any]:
        connection = http.client.HTTPConnection("127.0.0.1", self._etcd_port, timeout=CALL_S)
        try:
            connection.request("POST", f"/v3/kv/{operation}", json.dumps(body))
            return dict(json.loads(connection.getresponse().read()))
        finally:
            connection.close()
