"""The options of a connection to a Kubernetes cluster."""

from collections.abc import Iterator

import msgspec

from natsctl.errors import UsageError

SERVICE_ACCOUNT = "/var/run/secrets/kubernetes.io/serviceaccount"

_POSITIVE = (
    *("timeout_s", "connect_timeout_s", "plugin_timeout_s", "reread_s"),
    *("in_flight_max", "attempts_max", "answer_max_bytes"),
)


class KubeOptions(msgspec.Struct, frozen=True, kw_only=True):
    """The address of a cluster, the credentials for it, and limits. Its repr shows no secret.

    Without options, the cluster is the one that kubectl uses: from the files in KUBECONFIG, else
    from `~/.kube/config`, else the cluster of the pod in which the process runs.

    Attributes:
        kubeconfig: the path of a kubeconfig file, or several paths as in KUBECONFIG. The files must
            exist.
        context: the context of the kubeconfig; None means its current context.
        server: the URL of the kube-apiserver; it overrides the kubeconfig.
        token: a bearer token; it overrides the kubeconfig's user. With `server`, and without
            `kubeconfig` and `context`, no kubeconfig is read.
        tls_ca: the path of the CA certificates (PEM) that signed the server's certificate.
        tls_insecure: don't verify the server's certificate; only for experiments.
        namespace: the default namespace; None means the context's namespace, or `default`.
        service_account: the directory with the pod's token, CA and namespace.
        timeout_s: seconds for a call with all its retries.
        connect_timeout_s: seconds to establish a connection. Until the server answers for the first
            time, twice as long may pass.
        plugin_timeout_s: seconds for a credential plugin, including an interactive login.
        reread_s: seconds after which credentials in files are read again.
        in_flight_max: concurrent calls; further calls wait. Watches don't count.
        attempts_max: attempts of a call that may be retried.
        answer_max_bytes: the largest response, and the longest line of a watch.
    """

    kubeconfig: str | None = None
    context: str | None = None
    server: str | None = None
    token: str | None = None
    tls_ca: str | None = None
    tls_insecure: bool = False
    namespace: str | None = None
    service_account: str = SERVICE_ACCOUNT
    timeout_s: float = 30.0
    connect_timeout_s: float = 5.0
    plugin_timeout_s: float = 60.0
    reread_s: float = 60.0
    in_flight_max: int = 32
    attempts_max: int = 6
    answer_max_bytes: int = 256 * 1024 * 1024

    def __repr__(self) -> str:
        shown = ", ".join(f"{name}={value!r}" for name, value in self.__rich_repr__())
        return f"KubeOptions({shown})"

    def __rich_repr__(self) -> Iterator[tuple[str, object]]:  # type: ignore[override]
        for field in msgspec.structs.fields(self):
            value = getattr(self, field.name)
            if value != field.default:
                yield field.name, "***" if field.name == "token" else value

    def check(self) -> None:
        """Raise `UsageError` if an option is invalid or contradicts another one."""
        for name in _POSITIVE:
            if getattr(self, name) <= 0:
                raise UsageError(f"Kubernetes option {name} must be above 0")
        if self.tls_ca and self.tls_insecure:
            raise UsageError("Kubernetes options tls_ca and tls_insecure exclude each other")
        if self.server and "://" not in self.server:
            raise UsageError("Kubernetes option server is not a URL: use https://HOST:PORT")
        if self.token is not None and not self.token.strip():
            raise UsageError("Kubernetes option token is empty")
