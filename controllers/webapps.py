"""WebApps: makes a Deployment, a Service and a ConfigMap in a cluster for every WebApp.

Run it:       natsctl run --embedded --controller controllers.webapps:WebApps
An app:       natsctl put webapps shop '{"spec": {"image": "nginx", "env": {"MODE": "demo"}}}'
See:          natsctl get webapps shop; kubectl get all,configmaps -l natsctl.io/owner-key=shop

An app gets the values that it does not set from the defaults of its namespace, or from the defaults
`all`. Defaults are objects in NATS, like the apps, and are checked in the same way.
"""

import hashlib
import re
from typing import Annotated

import msgspec

from natsctl import (
    Controller,
    InvalidObjectError,
    Manifest,
    Object,
    PermanentError,
    kube,
    kv,
    primary,
    secondary,
    tertiary,
)

ENV = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
LABEL = re.compile(r"[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?")  # a Service begins with a letter
HASHED = re.compile(r".*-[0-9a-f]{16}")
PORT_MAX = 65535


class WebAppSpec(msgspec.Struct, frozen=True):
    """The image of an app, its namespace and its environment; the app listens on `port`."""

    image: str
    port: int = 8080
    replicas: int | None = None
    env: dict[str, str] = {}
    namespace: str = "default"


class WebApp(Object, frozen=True):
    """A program that answers HTTP."""

    spec: WebAppSpec


class WebAppDefaultsSpec(msgspec.Struct, frozen=True):
    """The values for apps that do not set their own; invalid defaults are skipped."""

    replicas: Annotated[int, msgspec.Meta(ge=0)] = 1
    env: dict[Annotated[str, msgspec.Meta(pattern=f"^{ENV.pattern}$")], str] = {}


class WebAppDefaults(Object, frozen=True):
    """The defaults of one namespace, whose name is the key, or of all namespaces (key `all`)."""

    spec: WebAppDefaultsSpec = WebAppDefaultsSpec()


class WebApps(Controller):
    """Runs every WebApp in the cluster, and reports the ready replicas in its status."""

    apps = primary(
        kv(WebApp, bucket="webapps", columns={"IMAGE": "spec.image", "READY": "status.ready"})
    )
    configs = secondary(kube("v1", "ConfigMap"))
    deployments = secondary(kube("apps/v1", "Deployment"))
    services = secondary(kube("v1", "Service"))
    defaults = tertiary(kv(WebAppDefaults, bucket="webapp-defaults"))

    resync_s = 60.0  # a change of a tertiary, such as the defaults, enqueues no key

    async def sync_handler(self, key: str) -> float | None:
        """Apply the three objects of the app, and report the result in its status."""
        app = self.apps.get(key)
        if app is None:
            return None  # deleted: natsctl deletes its objects after this returns
        try:
            status = await self._make(key, self._with_defaults(app.spec))
        except InvalidObjectError as error:  # from `check`, or from the cluster
            accepted = condition("Accepted", "InvalidSpec", str(error), holds=False)
            await self.apps.update_status(key, {"ready": False, "conditions": [accepted]})
            raise PermanentError(str(error)) from error
        await self.apps.update_status(key, status)
        return None

    async def _make(self, key: str, spec: WebAppSpec) -> Manifest:
        """Apply the objects of the app and return its status.

        Deletes the objects of the app in its former namespace.
        """
        check(spec)
        name = name_of(key)
        key_in_cluster = f"{spec.namespace}/{name}"
        await self.configs.apply(config_map(name, spec))
        await self.deployments.apply(deployment(name, spec))
        await self.services.apply(service(name, spec))
        for slot in (self.configs, self.deployments, self.services):
            for former in slot.owned().keys() - {key_in_cluster}:
                await slot.delete(former)
        applied = self.deployments.get(key_in_cluster) or {}
        return {"at": key_in_cluster, **progress(applied, spec.replicas or 0)}

    def _with_defaults(self, spec: WebAppSpec) -> WebAppSpec:
        defaults = self.defaults.get(spec.namespace) or self.defaults.get("all") or WebAppDefaults()
        replicas = defaults.spec.replicas if spec.replicas is None else spec.replicas
        return msgspec.structs.replace(spec, replicas=replicas, env=defaults.spec.env | spec.env)


def check(spec: WebAppSpec) -> None:
    """Raise `InvalidObjectError` for values that a cluster refuses or ignores."""
    odd = [name for name in spec.env if not ENV.fullmatch(name)]
    faults = {
        "image is empty": not spec.image.strip(),
        f"port {spec.port} is not between 1 and {PORT_MAX}": not 1 <= spec.port <= PORT_MAX,
        f"replicas {spec.replicas} is below 0": (spec.replicas or 0) < 0,
        f"env has invalid names of variables: {', '.join(map(repr, odd))}": bool(odd),
        f"namespace {spec.namespace!r} is not a valid name": not LABEL.fullmatch(spec.namespace),
    }
    if present := [fault for fault, holds in faults.items() if holds]:
        raise InvalidObjectError("; ".join(present))


def name_of(key: str) -> str:
    """Return the name of the app's objects: the key, if a Service can have this name.

    Otherwise the name has the legal part of the key and a hash of the key. A key that looks like
    such a name gets a hash too, so no two keys have the same name.
    """
    if LABEL.fullmatch(key) and key[0].isalpha() and not HASHED.fullmatch(key):
        return key
    slug = re.sub(r"[^a-z0-9]+", "-", key.lower()).strip("-")
    named = slug if slug[:1].isalpha() else f"app-{slug}"
    return f"{named[:46].rstrip('-')}-{digest(key.encode())}"  # 63 characters at most


def config_map(name: str, spec: WebAppSpec) -> Manifest:
    """Return the ConfigMap with the environment of the app."""
    return {**head(name, spec), "data": {"PORT": str(spec.port), **spec.env}}


def deployment(name: str, spec: WebAppSpec) -> Manifest:
    """Return the Deployment of the app; it restarts the pods if the environment changes."""
    env = digest(msgspec.json.encode(spec.env, order="sorted"))
    container = {
        "name": "app",
        "image": spec.image,
        "ports": [{"name": "http", "containerPort": spec.port, "protocol": "TCP"}],
        "envFrom": [{"configMapRef": {"name": name}}],
    }
    pod = {"labels": selector(name), "annotations": {"webapps.natsctl.io/env": env}}
    return {
        **head(name, spec),
        "spec": {
            "replicas": spec.replicas,
            "selector": {"matchLabels": selector(name)},
            "template": {"metadata": pod, "spec": {"containers": [container]}},
        },
    }


def service(name: str, spec: WebAppSpec) -> Manifest:
    """Return the Service of the app."""
    ports = [{"name": "http", "port": 80, "targetPort": "http", "protocol": "TCP"}]
    return {**head(name, spec), "spec": {"selector": selector(name), "ports": ports}}


def head(name: str, spec: WebAppSpec) -> Manifest:
    """Return the metadata of each object of the app."""
    return {"metadata": {"name": name, "namespace": spec.namespace, "labels": selector(name)}}


def selector(name: str) -> dict[str, str]:
    """Return the label that selects the pods of the app."""
    return {"app.kubernetes.io/name": name}


def digest(content: bytes) -> str:
    """Return a hash of 16 characters."""
    return hashlib.sha256(content).hexdigest()[:16]


def progress(applied: Manifest, wanted: int) -> Manifest:
    """Return the status of an app from its Deployment."""
    status = applied.get("status", {})
    ready = status.get("readyReplicas", 0)
    is_current = status.get("observedGeneration") == applied.get("metadata", {}).get("generation")
    up = is_current and ready >= wanted
    message = f"{ready} of {wanted} replicas are ready"
    available = condition("Available", "ReplicasReady" if up else "Progressing", message, holds=up)
    conditions = [condition("Accepted", "ValidSpec", "", holds=True), available]
    return {"ready": up, "replicas": wanted, "readyReplicas": ready, "conditions": conditions}


def condition(condition_type: str, reason: str, message: str, *, holds: bool) -> Manifest:
    """Return a condition in the form of Kubernetes."""
    return {"type": condition_type, "status": str(holds), "reason": reason, "message": message}
