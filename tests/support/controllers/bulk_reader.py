"""A controller that caches many large things and writes nothing."""

from natsctl import Controller, kv, primary
from tests.support.clients.nats_admin import FAILURES, Admin
from tests.support.controllers.copy_controller import THINGS, Sights, Thing
from tests.support.faults.invariants import living, same, text_of

PADDING = "x" * 2_000


class Readers(Controller):
    """Records the things that it reads, and writes nothing."""

    things = primary(kv(Thing, bucket=THINGS, history=1))
    sync_timeout_s = 600.0

    def __init__(self) -> None:
        self.sights = Sights()

    async def sync_handler(self, key: str) -> float | None:
        await self.sights.go_on.wait()
        stored_thing = self.things.get(key)
        if stored_thing is None:
            self.sights.gone.add(key)
        else:
            self.sights.synced[key] = stored_thing.spec.text
        return None

    def restarts(self) -> int:
        return self.runtime.status().watch_restarts


def taken_in(controller: Readers, revision: int) -> bool:
    return controller.things.informer.table.revision >= revision


async def settled(controller: Readers, admin: Admin) -> bool:
    """Assert that the cache equals the bucket, and that every newest state was synced."""
    try:
        things = living(await admin.entries(THINGS))
    except FAILURES as error:
        raise AssertionError(f"the servers cannot be read: {error!r}") from error
    same(controller.things, things)
    assert controller.sights.synced == {key: text_of(entry.value) for key, entry in things.items()}
    return True


async def write(admin: Admin, key: str, text: str) -> None:
    await admin.write(THINGS, key, {"spec": {"text": text}})
