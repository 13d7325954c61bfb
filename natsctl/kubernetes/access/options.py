"""How to reach a Kubernetes cluster, and as whom."""

from collections.abc import Iterator

import msgspec

from natsctl.errors import UsageError

SERVICE_ACCOUNT = "/var/run/secrets/kubernetes.io/serviceaccount"

_POSITIVE = (
    *("timeout_s", "connect_timeout_s", "plugin_timeout_s", "reread_s"),
    *("in_flight_max", "attempts_max", "answer_max_bytes"),
)


class KubeOptions(msgspec.Struct, frozen=True, kw_only=True):
    """Where the cluster is, who we are there, and how long we wait. Its repr shows no secret.

    Without any, the cluster is the one that kubectl would speak to: that of the files in
    KUBECONFIG, or else of `~/.kube/config`, or else the one whose pod we run in.

    Attributes:
        kubeconfig: the path of a kubeconfig, or several as in KUBECONFIG; its files must exist.
        context: the context of the kubeconfig; none means its current one.
        server: the kube-apiserver's URL, instead of the kubeconfig's.
        token: a bearer token, instead of the kubeconfig's user. With `server`, and neither
            `kubeconfig` nor `context`, no kubeconfig is read at all.
        tls_ca: the path of the certificates (PEM) that vouch for the server.
        tls_insecure: do not check the server's certificate: for experiments.
        namespace: the namespace of what names none; none means the context's, or `default`.
        service_account: the folder of the pod's token, CA and namespace.
        timeout_s: seconds that a call may take, with everything that is tried again.
        connect_timeout_s: seconds in which a connection is had, or failed.
        plugin_timeout_s: seconds that a credential plugin may take, a person's login included.
        reread_s: seconds after which credentials that are kept in files are read anew.
        in_flight_max: calls on their way at once; the others wait. Watches do not count.
        attempts_max: how often a call that may be repeated is sent, all in all.
        answer_max_bytes: the largest answer that is taken, and the longest line of a watch.
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
        """Raise `UsageError` where an option makes no sense, or contradicts another."""
        for name in _POSITIVE:
            if getattr(self, name) <= 0:
                raise UsageError(f"Kubernetes option {name} must be above 0")
        if self.tls_ca and self.tls_insecure:
            raise UsageError("Kubernetes options tls_ca and tls_insecure exclude each other")
        if self.server and "://" not in self.server:
            raise UsageError("Kubernetes option server is no URL: say https://HOST:PORT")
        if self.token is not None and not self.token.strip():
            raise UsageError("Kubernetes option token is empty")
