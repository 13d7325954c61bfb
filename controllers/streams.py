"""Streams and consumers: what JetStream should have, declared in two buckets.

The object `orders` in the bucket `streams` is the stream `orders`; the object `billing` in the
bucket `consumers` is that consumer of the stream that it names. `config` is the server's own, as
`nats stream info --json` shows it, durations in nanoseconds. What it does not say is the
server's default, and left alone where somebody changes it.

An existing stream is taken over only where the object says `adopt`; with the annotation
`natsctl.io/management-policy: observe` it is only compared with what the object says. Deleting an
object deletes what was created for it, with all messages, unless it says
`"deletionPolicy": "Orphan"`; what was adopted is deleted only with `"deletionPolicy": "Delete"`. A
stream that was deleted by hand is made again, empty.

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

OWNER = "natsctl.io/owner"  # in the metadata of a stream or a consumer: what it was created for
POLICY = AnnotationNames().management_policy
TIMEOUT_S = 30.0  # for the calls of one reconciliation

NAME = r"[^\s.*>/\\]+"

Config = dict[str, Any]


class StreamSpec(msgspec.Struct, frozen=True, rename="camel"):
    """What a stream should be like; `name` is the object's key where it is left out."""

    config: Config
    name: str = ""
    adopt: bool = False
    deletion_policy: Literal["", "Delete", "Orphan"] = ""


class Stream(Object, frozen=True):
    """A stream."""

    spec: StreamSpec


class ConsumerSpec(msgspec.Struct, frozen=True, rename="camel"):
    """What a durable consumer should be like, and of which stream."""

    stream: str
    config: Config = {}
    name: str = ""
    adopt: bool = False
    deletion_policy: Literal["", "Delete", "Orphan"] = ""


class Consumer(Object, frozen=True):
    """A consumer."""

    spec: ConsumerSpec


class Asset(ABC):
    """An `ExternalClient` of what JetStream keeps: a subclass says by which requests."""

    named: re.Pattern[str]

    def __init__(self, jetstream: JetStream, owner: str) -> None:
        self._jetstream = jetstream
        self._owner = owner

    @staticmethod
    @abstractmethod
    def name_of(managed: Managed[Any]) -> str:
        """Return how the object wants it to be called, with what it is in before it."""

    @abstractmethod
    def request(self, managed: Managed[Any], config: Config, action: str) -> dict[str, object]:
        """Return what to ask for, to create or update it."""

    @abstractmethod
    def endpoint(self, verb: str) -> str:
        """Return what to ask the API, without the name."""

    async def observe(self, managed: Managed[Any]) -> Observation:
        """Compare what is said with what there is; refuse what is not ours to say anything of."""
        self._check_name(managed)
        found = await self._found(managed)
        if found is None or (managed.is_going and not self._to_be_deleted(managed, found)):
            return Observation()
        self._refuse_foreign(managed, found)
        wrong = differing(managed.spec.get("config", {}), found)
        diff = ", ".join(f"{name} is {found.get(name)!r}" for name in wrong)
        return Observation(exists=True, up_to_date=not wrong, diff=diff)

    async def create(self, managed: Managed[Any]) -> None:
        """Create it, and note on it what it was created for."""
        config = dict(managed.spec.get("config", {}))
        config["metadata"] = {**config.get("metadata", {}), OWNER: self._owner}
        await self._ask("CREATE", managed, self.request(managed, config, "create"))

    async def update(self, managed: Managed[Any]) -> None:
        """Change what may be changed; what the server keeps as it is, is an error that names it."""
        found = await self._found(managed) or {}
        wanted: Config = dict(managed.spec.get("config", {}))
        metadata = {**found.get("metadata", {}), **wanted.get("metadata", {})}
        config = {**found, **wanted, **({"metadata": metadata} if metadata else {})}
        wrong = ", ".join(differing(wanted, found))
        try:
            answer = await self._ask("UPDATE", managed, self.request(managed, config, "update"))
        except StoreError as error:
            raise UsageError(f"{wrong} cannot become as wanted: {error}") from error
        kept = ", ".join(differing(wanted, answer["config"]))
        if kept:
            raise UsageError(f"{kept} cannot become as wanted: the server leaves it as it is")

    async def delete(self, managed: Managed[Any]) -> None:
        """Delete it, with everything in it."""
        try:
            await self._ask("DELETE", managed)
        except (NotFoundError, StoreMissingError):
            return

    async def _found(self, managed: Managed[Any]) -> Config | None:
        try:
            answer = await self._ask("INFO", managed)
        except (NotFoundError, StoreMissingError):
            return None
        config: Config = answer["config"]
        return config

    async def _ask(
        self, verb: str, managed: Managed[Any], body: Mapping[str, object] | None = None
    ) -> dict[str, Any]:
        return await self._jetstream.api(f"{self.endpoint(verb)}.{managed.external_name}", body)

    def _to_be_deleted(self, managed: Managed[Any], found: Config) -> bool:
        """Say whether it was created for this object, or is to go whoever created it."""
        owner = _owner(found)
        told = managed.spec.get("deletionPolicy") == "Delete"
        return owner == self._owner or (told and not owner)

    def _check_name(self, managed: Managed[Any]) -> None:
        """Refuse a name that JetStream has not, and another one than what was created has."""
        name, wanted = managed.external_name, self.name_of(managed)
        if not self.named.fullmatch(name):
            raise PermanentError(f"{name!r} cannot be a name in JetStream: set spec.name")
        if name != wanted and not managed.is_going:
            raise PermanentError(f"{name} cannot become {wanted}: put another object for that")

    def _refuse_foreign(self, managed: Managed[Any], found: Config) -> None:
        owner = _owner(found)
        only_observed = managed.annotations.get(POLICY, "").lower() in {"observe", "observe-delete"}
        if owner == self._owner or managed.is_going or only_observed:
            return
        if not owner and managed.spec.get("adopt"):
            return
        whose = f"was created for {owner}" if owner else "was not created here: adopt takes it over"
        raise ExistsError(f"{managed.external_name} exists and {whose}")


class StreamAsset(Asset):
    """A stream."""

    named = re.compile(NAME)

    @staticmethod
    def name_of(managed: Managed[Any]) -> str:
        """See `Asset.name_of`."""
        return managed.spec.get("name") or managed.key

    def endpoint(self, verb: str) -> str:
        """See `Asset.endpoint`."""
        return f"STREAM.{verb}"

    def request(self, managed: Managed[Any], config: Config, action: str) -> dict[str, object]:  # noqa: ARG002 - the endpoint says which
        """See `Asset.request`."""
        return {**config, "name": managed.external_name}


class ConsumerAsset(Asset):
    """A consumer; the endpoint for its updates is that for creations."""

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
    """Keeps streams as the bucket `streams` says."""

    streams = primary(kv(Stream, bucket="streams"))
    sync_timeout_s = 90.0  # the calls, and what is stored of them

    async def start(self) -> None:
        """Reach JetStream where the bucket is."""
        self._reconcile = reconciler(self.streams, StreamAsset, self)

    async def sync_handler(self, key: str) -> float | None:
        """Make the stream what its object says."""
        return await self._reconcile.reconcile(key)


class Consumers(Controller):
    """Keeps consumers as the bucket `consumers` says."""

    consumers = primary(kv(Consumer, bucket="consumers"))
    sync_timeout_s = 90.0

    async def start(self) -> None:
        """Reach JetStream where the bucket is."""
        self._reconcile = reconciler(self.consumers, ConsumerAsset, self)

    async def sync_handler(self, key: str) -> float | None:
        """Make the consumer what its object says."""
        return await self._reconcile.reconcile(key)


def reconciler(
    objects: Primary[Any], asset: type[Asset], controller: Controller
) -> ManagedReconciler[Any]:
    """Return what makes JetStream's assets what these objects say."""
    jetstream, bucket = controller.runtime.nats, objects.kind.name.rpartition(".")[2]
    if not isinstance(jetstream, JetStream):
        raise UsageError(f"{objects.kind.name} is not kept in NATS, so there is no JetStream")

    async def connect(managed: Managed[Any]) -> Asset:
        return asset(jetstream, f"{bucket}/{managed.key}")

    return ManagedReconciler(
        objects,
        connecter=connect,
        external_name=asset.name_of,
        recorder=controller.runtime,
        timeout_s=TIMEOUT_S,
    )


def differing(wanted: Config, found: Config) -> list[str]:
    """Return what is said and not so; no limit may be said as 0 and found as -1, or not at all."""
    return [name for name, value in wanted.items() if not _fits(value, found.get(name))]


def _fits(wanted: object, found: object) -> bool:
    if isinstance(wanted, dict) and isinstance(found, dict):
        return all(_fits(value, found.get(name)) for name, value in wanted.items())
    return (
        wanted == found
        or (wanted in (None, 0, -1, "") and found in (None, 0, -1, ""))
        or not (wanted or found)
    )


def _owner(found: Config) -> str:
    return str((found.get("metadata") or {}).get(OWNER, ""))
