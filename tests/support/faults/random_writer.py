"""A user who writes things and changes their copies at random."""

import asyncio
import itertools
import random
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress

from tests.support.clients.nats_admin import FAILURES, Admin
from tests.support.controllers.copy_controller import COPIES, THINGS
from tests.support.eventually import eventually

ANSWER_S = 2.0  # a server that was killed never answers
TEXTS = itertools.count(1)  # no text is ever used again


class User:
    """Writes at random with a seed. Half of the keys are never deleted; `mortal` are the others.

    `meddled` are the copies that were changed or deleted by hand.
    """

    def __init__(self, admin: Admin, *, seed: int = 0, keys: int = 30) -> None:
        self.admin = admin
        self.keys = [f"k{number}" for number in range(keys)]
        self.mortal = set(self.keys[::2])
        self.meddled: set[str] = set()
        self.written = 0
        self._random = random.Random(seed)

    async def put(self, key: str) -> None:
        spec = {"text": f"{key} {next(TEXTS)}", "copies": 1 + self.keys.index(key) % 3}
        await self.admin.put(THINGS, key, {"spec": spec})

    async def put_all(self) -> None:
        await asyncio.gather(*(self.put(key) for key in self.keys))

    async def act(self) -> None:
        """Make one random write. Raises if the servers refuse it."""
        key = self._random.choice(self.keys)
        match self._random.random():
            case chance if chance < 0.75 or key not in self.mortal:
                await self.put(key)
            case chance if chance < 0.92:
                await self.admin.delete(THINGS, key)
            case _:
                await self.meddle(key)

    async def meddle(self, key: str) -> None:
        """Delete the first copy of a thing, or change its text but not its labels."""
        name = f"{key}.0"
        self.meddled.add(name)
        if self._random.random() < 0.5:
            await self.admin.delete(COPIES, name)
        else:
            entry = await self.admin.entry(COPIES, name)
            if not entry.marker:
                value = entry.value.replace(b'"text":"', b'"text":"spoilt ')
                await self.admin.request(f"$KV.{COPIES}.{name}", value)

    @asynccontextmanager
    async def writing(self, *, every_s: float = 0.03) -> AsyncIterator[None]:
        """Write repeatedly during the context, and ignore failures."""
        enough, patient = asyncio.Event(), self.admin
        async with (
            Admin(patient.url, answer_s=ANSWER_S) as self.admin,
            asyncio.TaskGroup() as group,
        ):
            group.create_task(self._write(every_s, enough), name="user")
            try:
                yield
            finally:
                enough.set()  # a cancelled task could leave nats-py running
        self.admin = patient

    async def progress(self, count: int = 25) -> None:
        """Wait until this many more writes have succeeded."""
        goal = self.written + count
        await eventually(lambda: self.written >= goal, within_s=120.0)

    async def _write(self, every_s: float, enough: asyncio.Event) -> None:
        while not enough.is_set():
            with suppress(*FAILURES):
                await self.act()
                self.written += 1
            await asyncio.sleep(every_s)
