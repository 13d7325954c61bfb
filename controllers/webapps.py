"""WebApps: every WebApp in a bucket becomes a Deployment, a Service and a ConfigMap of a cluster.

Run it:       natsctl run --embedded --controller controllers.webapps:WebApps
An app:       natsctl put webapps shop '{"spec": {"image": "nginx", "env": {"MODE": "demo"}}}'
See:          natsctl get webapps shop; kubectl get all,configmaps -l natsctl.io/owner-key=shop

What an app does not say is a default's, of its namespace or of `all`. Defaults are kept in NATS,
beside the apps: who puts the one can put the other, and both are checked alike.
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
LABEL = re.compile(r"[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?")  # a Service's begins with a letter
HASHED = re.compile(r".*-[0-9a-f]{16}")
PORT_MAX = 65535


class WebAppSpec(msgspec.Struct, frozen=True):
    """What runs, where, and what it finds in its environment; it listens on `port`."""

    image: str
    port: int = 8080
    replicas: int | None = None
    env: dict[str, str] = {}
    namespace: str = "default"


class WebApp(Object, frozen=True):
    """A program that answers HTTP."""

    spec: WebAppSpec


class WebAppDefaultsSpec(msgspec.Struct, frozen=True):
    """What apps have that do not say otherwise; what is not like this is never taken."""

    replicas: Annotated[int, msgspec.Meta(ge=0)] = 1
    env: dict[Annotated[str, msgspec.Meta(pattern=f"^{ENV.pattern}$")], str] = {}


class WebAppDefaults(Object, frozen=True):
    """Defaults of one namespace, or of every other: the key is the namespace, or `all`."""

    spec: WebAppDefaultsSpec = WebAppDefaultsSpec()


class WebApps(Controller):
    """Every WebApp runs in the cluster; its status says how many of its replicas are ready."""

    apps = primary(kv(WebApp, bucket="webapps"))
    configs = secondary(kube("v1", "ConfigMap"))
    deployments = secondary(kube("apps/v1", "Deployment"))
    services = secondary(kube("v1", "Service"))
    defaults = tertiary(kv(WebAppDefaults, bucket="webapp-defaults"))

    resync_s = 60.0  # being a tertiary's, a changed default wakes nobody

    async def sync_handler(self, key: str) -> float | None:
        """Make the three objects say what the app says, and the app's status what became of it."""
        app = self.apps.get(key)
        if app is None:
            return None  # its objects are removed after this returns
        try:
            status = await self._make(key, self._with_defaults(app.spec))
        except InvalidObjectError as error:  # the cluster's word counts as ours
            accepted = condition("Accepted", "InvalidSpec", str(error), holds=False)
            await self.apps.update_status(key, {"ready": False, "conditions": [accepted]})
            raise PermanentError(str(error)) from error
        await self.apps.update_status(key, status)
        return None

    async def _make(self, key: str, spec: WebAppSpec) -> Manifest:
        """Apply what the spec implies, over any edit by hand. Return the status.

        What was made in another namespace, where the app was before, goes.
        """
        check(spec)
        name = name_of(key)
        at = f"{spec.namespace}/{name}"
        await self.configs.apply(config_map(name, spec))
        await self.deployments.apply(deployment(name, spec))
        await self.services.apply(service(name, spec))
        for made in (self.configs, self.deployments, self.services):
            for left in made.owned().keys() - {at}:
                await made.delete(left)
        return {"at": at, **progress(self.deployments.get(at) or {}, spec.replicas or 0)}

    def _with_defaults(self, spec: WebAppSpec) -> WebAppSpec:
        found = self.defaults.get(spec.namespace) or self.defaults.get("all") or WebAppDefaults()
        replicas = found.spec.replicas if spec.replicas is None else spec.replicas
        return msgspec.structs.replace(spec, replicas=replicas, env=found.spec.env | spec.env)


def check(spec: WebAppSpec) -> None:
    """Raise `InvalidObjectError` for what no cluster takes, or would take and not understand."""
    odd = [name for name in spec.env if not ENV.fullmatch(name)]
    faults = {
        "image is empty": not spec.image.strip(),
        f"port {spec.port} is not between 1 and {PORT_MAX}": not 1 <= spec.port <= PORT_MAX,
        f"replicas {spec.replicas} is below 0": (spec.replicas or 0) < 0,
        f"env has {', '.join(map(repr, odd))}, which name no variable": bool(odd),
        f"namespace {spec.namespace!r} can be none": not LABEL.fullmatch(spec.namespace),
    }
    if found := [fault for fault, there in faults.items() if there]:
        raise InvalidObjectError("; ".join(found))


def name_of(key: str) -> str:
    """Return what the app's objects are called: as the key, if that can be a Service's name.

    Else what is legal of it and a hash of it all; a key that looks like that is hashed too, so
    that no two keys have the same name.
    """
    if LABEL.fullmatch(key) and key[0].isalpha() and not HASHED.fullmatch(key):
        return key
    slug = re.sub(r"[^a-z0-9]+", "-", key.lower()).strip("-")
    named = slug if slug[:1].isalpha() else f"app-{slug}"
    return f"{named[:46].rstrip('-')}-{digest(key.encode())}"  # 63 characters at most


def config_map(name: str, spec: WebAppSpec) -> Manifest:
    """Return what the app finds in its environment."""
    return {**head(name, spec), "data": {"PORT": str(spec.port), **spec.env}}


def deployment(name: str, spec: WebAppSpec) -> Manifest:
    """Return what runs the app, anew where its environment changes."""
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
    """Return where the app is reached within the cluster."""
    ports = [{"name": "http", "port": 80, "targetPort": "http", "protocol": "TCP"}]
    return {**head(name, spec), "spec": {"selector": selector(name), "ports": ports}}


def head(name: str, spec: WebAppSpec) -> Manifest:
    """Return how each of the app's objects begins."""
    return {"metadata": {"name": name, "namespace": spec.namespace, "labels": selector(name)}}


def selector(name: str) -> dict[str, str]:
    """Return the label that tells the app's pods from others."""
    return {"app.kubernetes.io/name": name}


def digest(content: bytes) -> str:
    """Return 16 characters that no other content has."""
    return hashlib.sha256(content).hexdigest()[:16]


def progress(made: Manifest, wanted: int) -> Manifest:
    """Return the status of an app with this Deployment, as far as the cluster has got with it."""
    status = made.get("status", {})
    ready = status.get("readyReplicas", 0)
    seen = status.get("observedGeneration") == made.get("metadata", {}).get("generation")
    up = seen and ready >= wanted
    told = f"{ready} of {wanted} replicas are ready"
    available = condition("Available", "ReplicasReady" if up else "Progressing", told, holds=up)
    conditions = [condition("Accepted", "ValidSpec", "", holds=True), available]
    return {"ready": up, "replicas": wanted, "readyReplicas": ready, "conditions": conditions}


def condition(of: str, reason: str, message: str, *, holds: bool) -> Manifest:
    """Return a condition as Kubernetes writes them."""
    return {"type": of, "status": str(holds), "reason": reason, "message": message}
