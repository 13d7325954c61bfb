"""All settings, each with its default and its meaning.

The flags, the variables, the lines of a file, the help texts, `natsctl config`, the errors and
docs/settings.md come from this catalogue.
"""

from natsctl.daemon.settings.setting import new_setting
from natsctl.daemon.settings.values import (
    ADDRESS,
    COLLECTOR,
    COUNT,
    DIRECTORY,
    DOMAIN,
    FILE,
    LEASE,
    LOG_FORMAT,
    LOG_LEVEL,
    NAME,
    SECONDS,
    SECONDS_OR_ZERO,
    SWITCH,
    TEXT,
    URLS,
    WORKERS,
)
from natsctl.jetstream.connection.options import DEFAULT_SERVER

_OF_CONTROLLER = "unless the controller sets it"
_OF_KUBECONFIG = "that of the kubeconfig"

SETTINGS = (
    new_setting(
        "nats.servers",
        URLS,
        ["nats://hub:4222"],
        "URLs of NATS servers, separated by commas",
        *("--server", "-s"),
        variables=("NATSCTL_SERVER", "NATS_URL"),
        unset=DEFAULT_SERVER,
    ),
    new_setting(
        "nats.context",
        NAME,
        "hub",
        "Name of a context of the nats command, which provides options that are not set",
        "--context",
    ),
    new_setting("nats.creds", FILE, "hub.creds", "Path of a credentials file", "--creds"),
    new_setting("nats.nkey", FILE, "user.nk", "Path of a file with a user's nkey seed", "--nkey"),
    new_setting("nats.user", NAME, "ann", "User name", "--user"),
    new_setting("nats.password", TEXT, "…", "Password of the user", "--password", secret=True),
    new_setting("nats.token", TEXT, "…", "Authentication token", "--token", secret=True),
    new_setting(
        "nats.tls_ca",
        FILE,
        "ca.pem",
        "Path of the CA certificates that verify the servers",
        "--tls-ca",
        unset="the system's CAs",
    ),
    new_setting("nats.tls_cert", FILE, "cert.pem", "Path of the client certificate", "--tls-cert"),
    new_setting(
        "nats.tls_key", FILE, "key.pem", "Path of the client certificate's key", "--tls-key"
    ),
    new_setting(
        "nats.tls_first", SWITCH, True, "Start TLS before the server sends its first message"
    ),
    new_setting("nats.domain", NAME, "hub", "JetStream domain", "--domain"),
    new_setting(
        "nats.api_prefix",
        TEXT,
        "$JS.hub.API",
        "Subject prefix of the JetStream API",
        unset="$JS.API, or that of the domain",
    ),
    new_setting("nats.inbox_prefix", TEXT, "_INBOX", "Subject prefix for responses to requests"),
    new_setting("nats.name", TEXT, "natsctl", "Name of the connection in the server's monitoring"),
    new_setting(
        "nats.timeout_s",
        SECONDS,
        5,
        "Timeout for connecting and for each request",
        "--timeout",
        fills=("nats.connect_timeout_s", "nats.request_timeout_s"),
    ),
    new_setting("nats.connect_timeout_s", SECONDS, 5, "Timeout for connecting"),
    new_setting("nats.request_timeout_s", SECONDS, 5, "Timeout for each request"),
    new_setting(
        "nats.silence_s",
        SECONDS,
        3,
        "Time without data from the server after which the connection counts as lost",
    ),
    new_setting(
        "nats.marker_ttl_s",
        SECONDS_OR_ZERO,
        2_592_000,
        "Time after which the server removes delete markers; 0 keeps them",
    ),
    new_setting(
        "kube.kubeconfig",
        FILE,
        "lab.yaml",
        "Path of a kubeconfig",
        "--kubeconfig",
        unset="$KUBECONFIG, or ~/.kube/config",
    ),
    new_setting(
        "kube.context",
        NAME,
        "lab",
        "Name of a context of the kubeconfig",
        "--kube-context",
        unset="the current context",
    ),
    new_setting(
        "kube.enabled",
        SWITCH,
        False,
        "Look for a cluster; --no-kube turns this off",
        "--no-kube",
        variables=("NATSCTL_KUBE_ENABLED",),
    ),
    new_setting(
        "kube.server",
        TEXT,
        "https://10.0.0.1:6443",
        "URL of the kube-apiserver",
        unset=_OF_KUBECONFIG,
    ),
    new_setting(
        "kube.token",
        TEXT,
        "…",
        "Bearer token",
        unset="the credentials of the kubeconfig",
        secret=True,
    ),
    new_setting(
        "kube.tls_ca",
        FILE,
        "ca.pem",
        "Path of the CA certificates that verify the kube-apiserver",
        unset=_OF_KUBECONFIG,
    ),
    new_setting(
        "kube.tls_insecure",
        SWITCH,
        True,
        "Do not verify the certificate of the kube-apiserver; only for experiments",
    ),
    new_setting(
        "kube.namespace",
        TEXT,
        "apps",
        "Namespace of objects whose key has none",
        unset="that of the context, or default",
    ),
    new_setting(
        "kube.service_account",
        FILE,
        "/var/run/secrets/kubernetes.io/serviceaccount",
        "Directory with the pod's token, CA and namespace",
    ),
    new_setting("kube.timeout_s", SECONDS, 5, "Timeout for a call with all its retries"),
    new_setting("kube.connect_timeout_s", SECONDS, 5, "Timeout for connecting"),
    new_setting(
        "kube.plugin_timeout_s",
        SECONDS,
        60,
        "Timeout for a credential plugin, including an interactive login",
    ),
    new_setting(
        "kube.reread_s", SECONDS, 60, "Time after which credentials in files are read again"
    ),
    new_setting("kube.in_flight_max", COUNT, 32, "Maximum number of concurrent calls"),
    new_setting("kube.attempts_max", COUNT, 6, "Maximum number of attempts of a call"),
    new_setting("kube.answer_max_bytes", COUNT, 256 * 1024 * 1024, "Maximum size of a response"),
    new_setting(
        "controllers.workers",
        WORKERS,
        4,
        "Number of keys that each controller syncs concurrently",
        "--workers",
        unset=f"4, {_OF_CONTROLLER}",
    ),
    new_setting(
        "controllers.resync_s",
        SECONDS,
        60,
        "Interval at which each controller syncs every primary again",
        "--resync",
        unset=f"600, {_OF_CONTROLLER}",
    ),
    new_setting(
        "controllers.sync_timeout_s",
        SECONDS,
        60,
        "Timeout for each sync",
        "--sync-timeout",
        unset=f"60, {_OF_CONTROLLER}",
    ),
    new_setting(
        "controllers.stop_timeout_s",
        SECONDS,
        25,
        "Time that running syncs have to finish after a stop signal",
        "--stop-timeout",
    ),
    new_setting(
        "controllers.owner_domain",
        DOMAIN,
        "example.com",
        "Domain of the owner labels of secondaries; kumori selects the labels of Kumori",
        "--owner-domain",
    ),
    new_setting(
        "controllers.leader_elect",
        SWITCH,
        True,
        "Run each controller in one process at a time; other processes stand by",
        "--leader-elect",
    ),
    new_setting(
        "controllers.shard",
        SWITCH,
        True,
        "Share each controller's keys among all processes that run it",
        "--shard",
    ),
    new_setting(
        "controllers.lease_ttl_s",
        LEASE,
        15,
        "Time after which other processes take over from a process that died",
        "--lease-ttl",
    ),
    new_setting(
        "controllers.state_dir",
        DIRECTORY,
        "/var/lib/natsctl",
        "Directory of the files that note which keys are held, in case the process dies",
        "--state-dir",
        unset="$XDG_STATE_HOME/natsctl, or ~/.local/state/natsctl",
    ),
    new_setting(
        "controllers.record",
        SWITCH,
        True,
        "Record the last syncs of every key, and not only failed syncs",
        "--record",
    ),
    new_setting(
        "controllers.recordings_max_bytes",
        COUNT,
        16 * 1024 * 1024,
        "Maximum memory of the recordings of syncs; the oldest are dropped",
    ),
    new_setting("logs.format", LOG_FORMAT, "json", "Format of log lines", "--log-format"),
    new_setting(
        "logs.level",
        LOG_LEVEL,
        "info,natsctl.jetstream=debug",
        "Minimum level of log lines, also per logger: info,natsctl.jetstream=debug",
        "--log-level",
    ),
    new_setting(
        "http.listen",
        ADDRESS,
        "127.0.0.1:8080",
        "Address to serve /livez, /readyz and /metrics on",
        "--listen",
    ),
    new_setting(
        "traces.otlp",
        COLLECTOR,
        "http://127.0.0.1:4318",
        "URL of a collector that receives spans (OTLP over HTTP); needs the extra natsctl[otlp]",
        "--otlp",
    ),
)
"""All settings in the order of the docs; a later one overrides an earlier one that fills more."""

BY_NAME = {setting.name: setting for setting in SETTINGS}
