"""What controllers use: kinds, buckets, schemas, and the cluster that they connect to."""

import asyncio
import random
from collections.abc import AsyncIterator, Iterable, Iterator, Sequence
from contextlib import asynccontextmanager, suppress
from functools import partial
from itertools import count
from typing import TYPE_CHECKING, Any

import msgspec

from natsctl.controller.controller import Controller
from natsctl.controller.garbage import MEMORY
from natsctl.controller.slots import slots
from natsctl.core.compare_and_set import read, rewrite
from natsctl.core.installation import INSTALLATION
from natsctl.core.readers import Primary, Tertiary
from natsctl.core.retry import backoff
from natsctl.daemon.operator import Guest, Runnable
from natsctl.errors import NotFoundError, PermissionDeniedError, StoreError, UsageError
from natsctl.kubernetes.options import KubeOptions
from natsctl.managed import AnnotationNames, ManagedController
from natsctl.managed.links import RECORDS, record_key
from natsctl.model.kinds import Kind, KvKind
from natsctl.model.manifests import KubeKind
from natsctl.model.schemas.kind_schema import SCHEMAS, KindSchema, Role, has_schema
from natsctl.model.store import Stored, Stores
from natsctl.telemetry.logger import get_logger
from natsctl.watchers import InformerController

if TYPE_CHECKING:
    from natsctl.kubernetes.cluster import Kube

log = get_logger(__name__)

PAUSE_S = 2.0  # between two attempts to read the identity of a cluster
RETRY_S = 1.0
RETRY_MAX_S = 60.0  # between attempts to publish schemas

_ROLES: dict[type, Role] = {Primary: "primary", Tertiary: "tertiary"}


class UsedKind(msgspec.Struct, frozen=True):
    """A kind that a controller uses, in a slot or, with an empty name, without one.

    The objects of a watcher are tertiary. Those that get a finalizer are `written`. `recreated`
    ones are created again to change immutable fields.
    """

    kind: Kind[Any]
    role: Role
    written: bool
    slot: str = ""
    recreated: bool = False


def kinds_of(controller: Controller | Runnable) -> Iterator[UsedKind]:
    """Yield the kinds of the controller in the order of their declaration."""
    if isinstance(controller, Controller):
        for slot in slots(type(controller)):
            mirrored = isinstance(slot.kind, KvKind) and slot.kind.statuses is not None
            written = slot.role is not Tertiary and not mirrored
            role = _ROLES.get(slot.role, "secondary")
            recreated = slot.on_immutable == "recreate"
            yield UsedKind(slot.kind, role, written, slot.name, recreated)
    if isinstance(controller, Controller | Guest):
        role = "primary" if isinstance(controller, ManagedController) else "tertiary"
        written_kinds: Sequence[Kind[Any]] = ()
        if isinstance(controller, InformerController | ManagedController):
            written_kinds = controller.held_kinds  # which get a finalizer
        for kind in controller.kinds:
            yield UsedKind(kind, role, kind in written_kinds)


class Used(msgspec.Struct, frozen=True):
    """The use of a kind in a bucket by a controller; without a watch, it reads single keys."""

    kind: KvKind[Any]
    written: bool
    controller: str
    watched: bool = True

    @property
    def bucket(self) -> str:
        return self.kind.bucket


def used_by(controllers: Iterable[Controller | Guest]) -> Iterator[Used]:
    """Yield the kinds in buckets that the controllers use, in the order of their declaration."""
    for controller in controllers:
        single = partial(Used, written=True, controller=controller.name, watched=False)
        for used in kinds_of(controller):
            if isinstance(used.kind, KvKind):
                yield Used(used.kind, used.written, controller.name)
        if isinstance(controller, Controller):
            yield single(MEMORY.part(f"gc.{controller.name}"))
            yield single(INSTALLATION)
        if isinstance(controller, ManagedController) and isinstance(controller.kind, KvKind):
            keys = record_key(controller.kind.bucket, ">", AnnotationNames())
            yield single(RECORDS.part(keys))


@asynccontextmanager
async def cluster_for(
    controllers: Sequence[Controller | Runnable], options: KubeOptions | None, *, wait: bool = False
) -> AsyncIterator["Kube | None"]:
    """Connect to the cluster that the controllers need, while the context lasts; None for none.

    With *wait*, it waits for a cluster that doesn't answer. Raises `UsageError`, with the name of a
    kind, if a cluster is needed and *options* is None.
    """
    needed = next((use for one in controllers for use in _uses_of_cluster(one)), None)
    if needed is None:
        yield None
        return
    if options is None:
        raise UsageError(
            f"{needed} is kept in Kubernetes, and --no-kube forbids a connection: remove --no-kube"
        )
    from natsctl.kubernetes.cluster import connect_kube  # noqa: PLC0415 - the import takes a third of a second

    async with connect_kube(options, wait=wait) as kube:
        yield kube


async def clusters_of(
    controllers: Sequence[Controller | Runnable], kube: "Kube | None", *, wait: bool = False
) -> dict[str, str]:
    """Return the identity of the cluster by the name of each controller that needs the cluster.

    With *wait*, it waits for a cluster that doesn't answer, and returns nothing, after a warning,
    if the user may not read the identity. Raises `StoreError`.
    """
    names = [controller.name for controller in controllers if any(_uses_of_cluster(controller))]
    while kube is not None and names:
        try:
            return dict.fromkeys(names, await kube.identity())
        except StoreError as error:
            if not wait:
                raise
            if isinstance(error, PermissionDeniedError | NotFoundError):
                log.warning("two clusters would not be told apart", error=error)
                break
            log.warning("cannot read the identity of the cluster yet", error=error)
            await asyncio.sleep(PAUSE_S * random.uniform(0.5, 1.0))  # noqa: S311 - jitter only
    return {}


def _uses_of_cluster(controller: Controller | Runnable) -> Iterator[str]:
    """Yield the slots and kinds of the controller that are kept in a cluster, for messages."""
    for used in kinds_of(controller):
        if isinstance(used.kind, KubeKind):
            by_name = f"{used.kind.name}, which {controller.name} reads,"
            yield f"{type(controller).__name__}.{used.slot}" if used.slot else by_name


def schemas_of(controllers: Iterable[Controller | Runnable]) -> list[KindSchema]:
    """Return the schema of each kind in NATS that has one, in its most important role."""
    schemas: dict[str, KindSchema] = {}
    for controller in controllers:
        version = getattr(controller, "version", "")
        for used in kinds_of(controller):
            if not isinstance(used.kind, KvKind) or not has_schema(used.kind):
                continue
            try:
                schema = KindSchema.of(
                    used.kind,
                    controller=controller.name,
                    controller_version=version,
                    role=used.role,
                )
            except UsageError as error:
                log.warning("a kind has no schema", kind=used.kind.name, error=error)
                continue
            known = schemas.get(schema.kind)
            if known is None or schema.replaces(known):
                schemas[schema.kind] = schema
    return list(schemas.values())


@asynccontextmanager
async def publishing(
    stores: Stores, controllers: Iterable[Controller | Runnable]
) -> AsyncIterator[None]:
    """Publish the schemas once, while the context lasts; failures are logged, or retried."""
    task = asyncio.create_task(_publish(stores, schemas_of(controllers)), name="schemas")
    try:
        yield
    finally:
        task.cancel()
        with suppress(asyncio.CancelledError):
            await task


async def _publish(stores: Stores, schemas: list[KindSchema]) -> None:
    for failures in count(1) if schemas else ():
        try:
            store = await stores.open(SCHEMAS)
            for schema in schemas:
                seen = await read(store, schema.key)
                written = await rewrite(store, schema.key, partial(_newest_of, schema), seen=seen)
                if written.base is not None:
                    log.info("published a schema", kind=schema.kind, version=schema.version)
        except PermissionDeniedError as error:
            log.warning(
                "cannot publish schemas, commands do not validate objects of this daemon's kinds",
                error=error,
            )
            return
        except StoreError as error:
            log.debug("cannot publish schemas yet", error=error)
            await asyncio.sleep(backoff(failures, base_s=RETRY_S, limit_s=RETRY_MAX_S))
        else:
            log.debug("all schemas are published")
            return


def _newest_of(schema: KindSchema, current: Stored | None) -> bytes:
    """Return the schema, or the published one if that's newer and can be read."""
    published = None if current is None else KindSchema.parse(current.value)
    if current is not None and published is not None and not schema.replaces(published):
        return current.value
    return msgspec.json.encode(schema)
