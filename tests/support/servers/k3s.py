"""A Kubernetes cluster in a container, for machines without a kube-apiserver."""

import base64
import warnings
from pathlib import Path
from typing import Any, Self

import yaml

from tests.support.servers.kube_cluster import KubeCluster

IMAGE = "rancher/k3s:v1.32.2-k3s1"
INSIDE = "/tests"  # the path of the test folder in the container


class K3s(KubeCluster):
    """A cluster in its own container: `with K3s(folder) as cluster`.

    The users have tokens, and only `admin` has a client certificate.
    """

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self._container: Any = None
        self._config: dict[str, Any] = {}

    def __enter__(self) -> Self:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            from testcontainers.community.k3s import K3SContainer  # noqa: PLC0415 - needs Docker

            self._container = self._made(K3SContainer(IMAGE))
            try:
                self._container.start()
                self._config = yaml.safe_load(self._container.config_yaml())
            except BaseException:
                self._container.stop()
                raise
        cluster = self._config["clusters"][0]["cluster"]
        self.ca.write_bytes(base64.b64decode(cluster["certificate-authority-data"]))
        return self

    def __exit__(self, *_: object) -> None:
        self.disconnect()
        self._container.stop()

    def _made(self, container: Any) -> Any:
        """Return the container with the files for user tokens and the audit log."""
        options = {
            "token-auth-file": f"{INSIDE}/tokens.csv",
            "audit-policy-file": f"{INSIDE}/policy.yaml",
            "audit-log-path": f"{INSIDE}/{self.audit_log.name}",
        }
        arguments = (f"--kube-apiserver-arg={name}={value}" for name, value in options.items())
        host = container.get_container_host_ip()
        container.with_volume_mapping(str(self.folder), INSIDE, "rw")
        return container.with_command(
            f"server --disable traefik --tls-san={host} {' '.join(arguments)}"
        )

    @property
    def url(self) -> str:
        return str(self._config["clusters"][0]["cluster"]["server"])

    def certificate(self, user: str) -> tuple[Path, Path]:
        """Return the files of the administrator's certificate, and of its key."""
        assert user == "admin", "only the administrator has a certificate here"
        credentials = self._config["users"][0]["user"]
        certificate = base64.b64decode(credentials["client-certificate-data"])
        key = base64.b64decode(credentials["client-key-data"])
        return self._new_file("crt", certificate), self._new_file("key", key)
