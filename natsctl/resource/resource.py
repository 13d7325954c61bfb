"""One kind, watched once, and lent to any number of readers."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from traceback import extract_stack
from types import TracebackType
from typing import Generic, Self, TypeVar

from natsctl.core.cache.informer import Informer
from natsctl.core.queue.retry import always_retry
from natsctl.core.sync.calls import blocking
from natsctl.core.task_group import together
from natsctl.errors import QueueShutDownError, StoppedError, UsageError
from natsctl.model.kinds import Kind
from natsctl.model.store import Stores
from natsctl.resource.event import Event
from natsctl.resource.failing import ErrorHandler, RateLimiter
from natsctl.resource.store import ResourceStore
from natsctl.resource.subscription import Subscription

T = TypeVar("T")

TURN_S = 0.01  # for how long a subscriber may go on before other tasks get their turn


class EventStream(Generic[T]):
    """One subscriber's events, to be iterated with `async for`, by any number of tasks.

    It ends where its error handler says `Stop`, and where the resource is left or stopped.
    """

    def __init__(self, subscription: Subscription[T]) -> None:
        self._subscription = subscription
        self._clock = asyncio.get_running_loop().time
        self._turn_ends = self._clock() + TURN_S

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Event[T]:
        if self._clock() >= self._turn_ends:
            await asyncio.sleep(0)  # neither an event nor what is made of it need ever have waited
            self._turn_ends = self._clock() + TURN_S
        try:
            return await self._subscription.next()
        except QueueShutDownError:
            raise StopAsyncIteration from None


class Resource(Generic[T]):
    """Objects of one kind, as streams of events and as a read-only store.

    Used as `async with Resource(kind, stores) as resource:`. Nothing is opened or watched before
    the first stream is entered or the store is asked for; from then on there is one watch, however
    many subscribers there are. Leaving, or `stop`, ends the watch and every stream.

    Example:
        async with Resource(kv(Host, bucket="hosts"), stores) as resource:
            async with resource.events() as events:
                async for event in events:
                    async with event:
                        match event.kind:
                            case EventKind.UPSERT:
                                await serve(event.key, event.object)
                            case EventKind.DELETE:
                                await unserve(event.key)

    A store that cannot be opened ends the block with its `StoreError`; one that is lost later is
    waited for, and what changed meanwhile is told then.

    Args:
        kind: which objects; of NATS or of Kubernetes.
        stores: where they are kept.
    """

    blocking = staticmethod(blocking)
    """Run a function that blocks in a thread: `await resource.blocking(function, *args)`.

    Within `async with event` the event is marked once the thread has ended.
    """

    def __init__(self, kind: Kind[T], stores: Stores) -> None:
        self.kind = kind
        self._stores = stores
        self._informer: Informer[T] | None = None
        self._subscriptions: list[Subscription[T]] = []
        self._complete = asyncio.Event()  # the first listing was told
        self._lifetime = AsyncExitStack()
        self._group: asyncio.TaskGroup | None = None
        self._watching: asyncio.Task[None] | None = None
        self._stopped = False

    async def __aenter__(self) -> Self:
        if self._group is not None:
            raise UsageError(f"the resource of {self.kind.name} was entered before: make another")
        self._group = await self._lifetime.enter_async_context(together())
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.stop()
        await self._lifetime.__aexit__(kind, error, traceback)

    def stop(self) -> None:
        """End the watch and every stream, as leaving does; who handles an event may finish."""
        self._stopped = True
        self._complete.set()
        for subscription in self._subscriptions:
            subscription.close()
        if self._watching is not None:
            self._watching.cancel()

    def events(
        self,
        *,
        error_handler: ErrorHandler = always_retry,
        rate_limiter: RateLimiter | None = None,
    ) -> AbstractAsyncContextManager[EventStream[T]]:
        """Return a stream of its own, to be entered with `async with`.

        Args:
            error_handler: what follows `done(error)`: `always_retry`, `retry_up_to`, which then
                ends the stream, `give_up_after`, which then ends the key, or any `ErrorHandler`.
            rate_limiter: how long a failing key waits; one for each stream. By default 5 ms,
                doubling to 1000 s, as in client-go; a `TokenBucket` limits all retries besides.

        Guarantees:
            - Every object that there is is told as an upsert, then one sync, however late the
              stream is entered. The sync comes once those were told, not once they are done.
            - One event of a key is out at a time. The next tells the newest state, if that
              changed: what happened in between is not told one by one.
            - A failed upsert whose object is gone is retried as its delete, and a failed delete
              whose object is back as its upsert.
            - A delete is told only of what was told before, with the state told last. An object
              made anew under the same key, which its uid tells, is a delete and then an upsert.
            - Events go on after a lost connection, with what changed meanwhile.

        Entering raises `StoppedError` where the resource was stopped, and iterating or leaving
        `EventNotDoneError` where an event was collected before it was marked done.
        """
        return self._subscribed(error_handler, rate_limiter, _line_of_caller())

    async def store(self) -> ResourceStore[T]:
        """Return the objects to read, once every one is there.

        Waits for as long as it takes: give it a deadline. Raises `StoppedError` where the resource
        is left or stopped before.
        """
        self._watch()
        await self._complete.wait()
        if self._stopped or self._informer is None:
            raise StoppedError(f"the resource of {self.kind.name} was stopped, not complete yet")
        return ResourceStore(self._informer.cache)

    @asynccontextmanager
    async def _subscribed(
        self,
        error_handler: ErrorHandler,
        rate_limiter: RateLimiter | None,
        made_at: str,
    ) -> AsyncIterator[EventStream[T]]:
        self._watch()
        subscription = Subscription(
            self.kind, error_handler=error_handler, rate_limiter=rate_limiter, made_at=made_at
        )
        self._subscriptions.append(subscription)
        try:
            self._follow(subscription)
            yield EventStream(subscription)
            subscription.check()
        finally:
            subscription.close()
            self._subscriptions.remove(subscription)

    def _watch(self) -> None:
        """Begin to watch, unless that has begun."""
        if self._group is None:
            raise UsageError(f"the resource of {self.kind.name} is used within `async with`")
        if self._stopped:
            raise StoppedError(f"the resource of {self.kind.name} was stopped")
        if self._watching is None:
            name = f"watch of {self.kind.name}"
            self._watching = self._group.create_task(self._run(), name=name)

    async def _run(self) -> None:
        store = await self._stores.open(self.kind)
        self._informer = Informer(store, self.kind, on_listed=self._listed)
        self._follow(*self._subscriptions)
        await self._informer.run()

    def _follow(self, *subscriptions: Subscription[T]) -> None:
        """Have them told what the informer sees, once there is one."""
        if self._informer is not None:
            for subscription in subscriptions:
                subscription.follow(self._informer)
                if self._complete.is_set():
                    subscription.complete()

    def _listed(self) -> None:
        """Know that a listing was told, all of it; only the first is news."""
        if not self._complete.is_set():
            self._complete.set()
            for subscription in self._subscriptions:
                subscription.complete()


def _line_of_caller() -> str:
    """Return the line of code that called the caller's method."""
    line = extract_stack(limit=3)[0]
    return f"{line.filename}:{line.lineno}"
