"""A store for simulated processes that can crash before or after any call."""

from collections.abc import Callable
from contextlib import AbstractContextManager

from natsctl.core.store_proxy import Send, StoreProxy, T
from natsctl.model.documents import Document
from natsctl.model.store import Store


class MortalStore(StoreProxy):
    """A store that makes each call of `store` within the context `around(key)`."""

    def __init__(self, store: Store, around: Callable[[str], AbstractContextManager[None]]) -> None:
        super().__init__(store)
        self._around = around

    async def _call(
        self,
        verb: str,
        key: str,
        send: Send[T],
        value: bytes | Document = b"",
        *,
        revision: int | None = None,
    ) -> T:
        with self._around(key):
            return await send()
