"""Plans keys on request, with a new instance of a controller that this daemon runs."""

import asyncio
from collections.abc import Sequence
from contextvars import Context

from natsctl.controller.controller import Controller
from natsctl.controller.runtime import ControllerRuntime
from natsctl.controller.slots.owners import OwnerNames
from natsctl.core.hosted import Hosted
from natsctl.daemon.loader import make
from natsctl.daemon.operator import Guest
from natsctl.daemon.plan import plan
from natsctl.errors import NatsctlError, UsageError
from natsctl.model.plans.plan import Plan
from natsctl.model.store import ManifestStores, Stores
from natsctl.telemetry.logger import bind_log_context

KEYS_MAX = 20  # in one request
OBJECTS_MAX = 50_000  # in the caches of the controller, which a plan fills once more
LIMIT_S = 20.0


class Planner:
    """Plans the keys of controllers, one request at a time; see `natsctl.plan`.

    The handler of a new instance runs in this process, over stores that keep its writes in memory.
    It has neither the leadership nor the recordings nor the files of the controller that runs.

    Args:
        nats: the stores of kinds that are declared with `kv`, without a write guard.
        kube: the stores of kinds that are declared with `kube`, likewise.
        owner_names: the labels that link secondaries to primaries.
        objects_max: how many objects the caches of a controller may have.
    """

    def __init__(
        self,
        *,
        nats: Stores,
        kube: ManifestStores | None = None,
        owner_names: OwnerNames | None = None,
        objects_max: int = OBJECTS_MAX,
    ) -> None:
        self._nats, self._kube, self._owner_names = nats, kube, owner_names
        self._objects_max = objects_max
        self._busy = asyncio.Lock()

    async def plan(self, runtime: Hosted, keys: Sequence[str]) -> Plan:
        """Return what the controller would do now for these keys.

        Raises `UsageError` for no keys or too many, for a controller whose class does not make it
        again, and for one with too many objects. Raises `NatsctlError` if another plan is being
        made, and if the plan takes longer than `LIMIT_S`.
        """
        if not 1 <= len(keys) <= KEYS_MAX:
            raise UsageError(
                f"name 1 to {KEYS_MAX} keys: a daemon makes no larger plan; {_command(runtime)}"
            )
        controller = _new_instance(runtime)
        caches = [informer.cache for informer in runtime.informers.values()]
        objects = sum(len(cache) + len(cache.invalid) for cache in caches)
        if objects > self._objects_max:
            raise UsageError(
                f"{runtime.name} has {objects} objects, and a daemon plans with at most "
                f"{self._objects_max}: {_command(runtime)}"
            )
        if self._busy.locked():
            raise NatsctlError("the daemon is making another plan: try again")
        async with self._busy:
            try:
                async with asyncio.timeout(LIMIT_S):
                    return await self._planned(controller, keys)
            except TimeoutError:
                raise NatsctlError(
                    f"the plan takes longer than {LIMIT_S:g} s: {_command(runtime)}"
                ) from None

    async def _planned(self, controller: Controller | Guest, keys: Sequence[str]) -> Plan:
        """Make the plan with fresh context variables."""
        context = Context()
        context.run(bind_log_context, controller=controller.name, planning=True)
        work = plan(
            controller,
            nats=self._nats,
            kube=self._kube,
            keys=keys,
            owner_names=self._owner_names,
        )
        return await asyncio.create_task(work, name="plan", context=context)


def _new_instance(runtime: Hosted) -> Controller | Guest:
    """Return a new instance of the controller's class, if it is the same controller."""
    running = _controller(runtime)
    if not isinstance(running, Controller | Guest):
        raise UsageError(f"{runtime.name} cannot be planned: it is a {type(running).__name__}")
    path = _path(type(running))
    try:
        controller = make(type(running), path)
    except UsageError as error:
        raise UsageError(f"{runtime.name} cannot be planned in its daemon: {error}") from error
    if controller.name != runtime.name:
        raise UsageError(
            f"{runtime.name} cannot be planned in its daemon: {path} alone makes another "
            f"controller, {controller.name}"
        )
    return controller


def _controller(runtime: Hosted) -> object:
    return runtime.controller if isinstance(runtime, ControllerRuntime) else runtime


def _path(cls: type[object]) -> str:
    return f"{cls.__module__}:{cls.__qualname__}"


def _command(runtime: Hosted) -> str:
    return f"run natsctl plan -c {_path(type(_controller(runtime)))}, which has no limit"
