"""Streams: manages JetStream streams and consumers that are declared in two buckets.

The object `orders` in the bucket `streams` is the stream `orders`. The object `billing` in the
bucket `consumers` is a consumer of the stream that the object names. `config` has the form of
`nats stream info --json`, with durations in nanoseconds. The server's default applies to a field
that `config` lacks, and the controller does not change such a field later.

The controller adopts an existing stream only if the object has `"adopt": true`. With the annotation
`natsctl.io/management-policy: observe` it only compares the stream with the object. If an object is
deleted, the stream that was created for it is deleted with all messages, unless the object has
`"deletionPolicy": "Orphan"`. An adopted stream is deleted only with `"deletionPolicy": "Delete"`. A
stream that somebody deletes is created again, without its messages.

Run it:       natsctl run --embedded -c controllers.streams:Streams -c controllers.streams:Consumers
A stream:     natsctl put streams orders '{"spec": {"config": {"subjects": ["orders.>"]}}}'
A consumer:   natsctl put consumers billing '{"spec": {"stream": "orders", "config": {}}}'
See:          natsctl get streams orders
"""

import re
from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Any, Literal

import msgspec

from natsctl import (
    AnnotationNames,
    Controller,
    ExistsError,
    JetStream,
    Managed,
    ManagedReconciler,
    NotFoundError,
    Object,
    Observation,
    PermanentError,
    Primary,
    StoreError,
    StoreMissingError,
    UsageError,
    kv,
    primary,
)

OWNER = "natsctl.io/owner"  # names the object in the metadata of its stream or consumer
POLICY = AnnotationNames().management_policy
TIMEOUT_S = 30.0  # of all calls of one reconciliation

NAME = r"[^\s.*>/\\]+"

Config = dict[str, Any]


class StreamSpec(msgspec.Struct, frozen=True, rename="camel"):
    """The desired configuration of a stream; an empty `name` stands for the object's key."""

    config: Config
    name: str = ""
    adopt: bool = False
    deletion_policy: Literal["", "Delete", "Orphan"] = ""


class Stream(Object, frozen=True):
    """The desired stream."""

    spec: StreamSpec


class ConsumerSpec(msgspec.Struct, frozen=True, rename="camel"):
    """The desired configuration of a durable consumer of a stream."""

    stream: str
    config: Config = {}
    name: str = ""
    adopt: bool = False
    deletion_policy: Literal["", "Delete", "Orphan"] = ""


class Consumer(Object, frozen=True):
    """The desired consumer."""

    spec: ConsumerSpec


class Asset(ABC):
    """An `ExternalClient` for JetStream; a subclass defines the requests."""

    named: re.Pattern[str]

    def __init__(self, jetstream: JetStream, owner: str) -> None:
        self._jetstream = jetstream
        self._owner = owner

    @staticmethod
    @abstractmethod
    def name_of(managed: Managed[Any]) -> str:
        """Return the desired external name: of a consumer, the stream and the consumer."""

    @abstractmethod
    def request(self, managed: Managed[Any], config: Config, action: str) -> dict[str, object]:
        """Return the body of a request that creates or updates."""

    @abstractmethod
    def endpoint(self, verb: str) -> str:
        """Return the subject of a request, without the name."""

    async def observe(self, managed: Managed[Any]) -> Observation:
        """Compare the configuration with the desired one; raise if another object owns it."""
        self._check_name(managed)
        actual = await self._read(managed)
        if actual is None or (managed.is_going and not self._may_delete(managed, actual)):
            return Observation()
        self._refuse_foreign(managed, actual)
        wrong = differing(managed.spec.get("config", {}), actual)
        diff = ", ".join(f"{name} is {actual.get(name)!r}" for name in wrong)
        return Observation(exists=True, up_to_date=not wrong, diff=diff)

    async def create(self, managed: Managed[Any]) -> None:
        """Create it with the name of its object in its metadata."""
        config = dict(managed.spec.get("config", {}))
        config["metadata"] = {**config.get("metadata", {}), OWNER: self._owner}
        await self._request("CREATE", managed, self.request(managed, config, "create"))

    async def update(self, managed: Managed[Any]) -> None:
        """Apply the configuration; raise if the server cannot change a field."""
        actual = await self._read(managed) or {}
        wanted: Config = dict(managed.spec.get("config", {}))
        metadata = {**actual.get("metadata", {}), **wanted.get("metadata", {})}
        config = {**actual, **wanted, **({"metadata": metadata} if metadata else {})}
        wrong = ", ".join(differing(wanted, actual))
        try:
            answer = await self._request("UPDATE", managed, self.request(managed, config, "update"))
        except StoreError as error:
            raise UsageError(f"cannot change {wrong}: {error}") from error
        unchanged = ", ".join(differing(wanted, answer["config"]))
        if unchanged:
            raise UsageError(f"cannot change {unchanged}: the server kept its value")

    async def delete(self, managed: Managed[Any]) -> None:
        """Delete it with all messages."""
        try:
            await self._request("DELETE", managed)
        except (NotFoundError, StoreMissingError):
            return

    async def _read(self, managed: Managed[Any]) -> Config | None:
        try:
            answer = await self._request("INFO", managed)
        except (NotFoundError, StoreMissingError):
            return None
        config: Config = answer["config"]
        return config

    async def _request(
        self, verb: str, managed: Managed[Any], body: Mapping[str, object] | None = None
    ) -> dict[str, Any]:
        return await self._jetstream.api(f"{self.endpoint(verb)}.{managed.external_name}", body)

    def _may_delete(self, managed: Managed[Any], actual: Config) -> bool:
        """Return whether it was created for this object, or adopted with the policy to delete."""
        owner = _owner(actual)
        delete_adopted = managed.spec.get("deletionPolicy") == "Delete"
        return owner == self._owner or (delete_adopted and not owner)

    def _check_name(self, managed: Managed[Any]) -> None:
        """Raise `PermanentError` for an illegal name, and for another name than the created one."""
        name, wanted = managed.external_name, self.name_of(managed)
        if not self.named.fullmatch(name):
            raise PermanentError(f"{name!r} is not a legal name in JetStream: set spec.name")
        if name != wanted and not managed.is_going:
            raise PermanentError(f"cannot rename {name} to {wanted}: put another object instead")

    def _refuse_foreign(self, managed: Managed[Any], actual: Config) -> None:
        owner = _owner(actual)
        only_observed = managed.annotations.get(POLICY, "").lower() in {"observe", "observe-delete"}
        if owner == self._owner or managed.is_going or only_observed:
            return
        if not owner and managed.spec.get("adopt"):
            return
        origin = (
            f"was created for {owner}"
            if owner
            else "was not created here: set adopt to take it over"
        )
        raise ExistsError(f"{managed.external_name} exists and {origin}")


class StreamAsset(Asset):
    """An `ExternalClient` for streams."""

    named = re.compile(NAME)

    @staticmethod
    def name_of(managed: Managed[Any]) -> str:
        """See `Asset.name_of`."""
        return managed.spec.get("name") or managed.key

    def endpoint(self, verb: str) -> str:
        """See `Asset.endpoint`."""
        return f"STREAM.{verb}"

    def request(self, managed: Managed[Any], config: Config, action: str) -> dict[str, object]:  # noqa: ARG002 - the endpoint has the action
        """See `Asset.request`."""
        return {**config, "name": managed.external_name}


class ConsumerAsset(Asset):
    """An `ExternalClient` for consumers; updates use the endpoint of creations."""

    named = re.compile(rf"{NAME}\.{NAME}")

    @staticmethod
    def name_of(managed: Managed[Any]) -> str:
        """See `Asset.name_of`."""
        return f"{managed.spec['stream']}.{managed.spec.get('name') or managed.key}"

    def endpoint(self, verb: str) -> str:
        """See `Asset.endpoint`."""
        return f"CONSUMER.{'CREATE' if verb == 'UPDATE' else verb}"

    def request(self, managed: Managed[Any], config: Config, action: str) -> dict[str, object]:
        """See `Asset.request`."""
        stream, _, name = managed.external_name.partition(".")
        named = {**config, "name": name, "durable_name": name}
        return {"stream_name": stream, "config": named, "action": action}


class Streams(Controller):
    """Manages a stream for each object of the bucket `streams`."""

    streams = primary(kv(Stream, bucket="streams"))
    sync_timeout_s = 90.0  # TIMEOUT_S, and the time to store the result

    async def start(self) -> None:
        """Connect to the JetStream of the bucket."""
        self._reconcile = reconciler(self.streams, StreamAsset, self)

    async def sync_handler(self, key: str) -> float | None:
        """Reconcile the stream of an object."""
        return await self._reconcile.reconcile(key)


class Consumers(Controller):
    """Manages a consumer for each object of the bucket `consumers`."""

    consumers = primary(kv(Consumer, bucket="consumers"))
    sync_timeout_s = 90.0

    async def start(self) -> None:
        """Connect to the JetStream of the bucket."""
        self._reconcile = reconciler(self.consumers, ConsumerAsset, self)

    async def sync_handler(self, key: str) -> float | None:
        """Reconcile the consumer of an object."""
        return await self._reconcile.reconcile(key)


def reconciler(
    objects: Primary[Any], asset: type[Asset], controller: Controller
) -> ManagedReconciler[Any]:
    """Return a reconciler for the objects of a bucket."""
    jetstream, bucket = controller.runtime.nats, objects.kind.name.rpartition(".")[2]
    if not isinstance(jetstream, JetStream):
        raise UsageError(f"{objects.kind.name} is not kept in NATS, so there is no JetStream")

    async def connect(managed: Managed[Any]) -> Asset:
        return asset(jetstream, f"{bucket}/{managed.key}")

    return ManagedReconciler(
        objects,
        connecter=connect,
        creation_grace_period_s=0.0,  # JetStream shows a stream once it answers its creation
        external_name=asset.name_of,
        recorder=controller.runtime,
        timeout_s=TIMEOUT_S,
    )


def differing(wanted: Config, actual: Config) -> list[str]:
    """Return the fields with other values than desired; 0, -1 and a missing field are equal."""
    return [name for name, value in wanted.items() if not _equal(value, actual.get(name))]


def _equal(wanted: object, actual: object) -> bool:
    if isinstance(wanted, dict) and isinstance(actual, dict):
        return all(_equal(value, actual.get(name)) for name, value in wanted.items())
    unset = (None, 0, -1, "")
    return wanted == actual or (wanted in unset and actual in unset) or not (wanted or actual)


def _owner(config: Config) -> str:
    return str((config.get("metadata") or {}).get(OWNER, ""))
