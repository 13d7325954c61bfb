"""The id of an installation, and its adoption of other ids."""

import asyncio

import pytest

from natsctl import Metadata
from natsctl.core.coordination.installation import (
    INSTALLATION,
    KEY,
    Installation,
    InstallationAnnotation,
    adopt,
    assign,
    installation,
)
from natsctl.errors import InvalidObjectError, PermissionDeniedError, StoreTimeoutError, UsageError
from natsctl.testing import MemoryStores


async def test_an_installation_keeps_its_id() -> None:
    stores = MemoryStores()
    created = await installation(stores)
    assert len(created.id) == 16
    assert await installation(stores) == created


async def test_two_systems_have_different_ids() -> None:
    assert await installation(MemoryStores()) != await installation(MemoryStores())


async def test_processes_that_start_at_once_agree_on_one_id() -> None:
    stores = MemoryStores()
    results = await asyncio.gather(*(installation(stores) for _ in range(20)))
    assert len({result.id for result in results}) == 1
    assert stores.store(INSTALLATION).writes == 1


async def test_an_invalid_stored_id_is_not_replaced() -> None:
    stores = MemoryStores()
    await stores.store(INSTALLATION).create(KEY, b"garbage")
    with pytest.raises(InvalidObjectError):
        await installation(stores)
    assert (await stores.store(INSTALLATION).get(KEY)).value == b"garbage"


async def test_an_unreadable_bucket_creates_no_id() -> None:
    stores = MemoryStores()
    stores.store(INSTALLATION).fail(PermissionDeniedError("not for you"))
    with pytest.raises(PermissionDeniedError):
        await installation(stores)


async def test_a_read_without_an_answer_is_repeated() -> None:
    stores = MemoryStores()
    created = await installation(stores)
    stores.store(INSTALLATION).fail(StoreTimeoutError("no answer"))
    asyncio.get_running_loop().call_later(2.0, stores.store(INSTALLATION).fail, None)
    assert await installation(stores) == created


class SilentStores(MemoryStores):
    async def open(self, kind: object) -> object:  # type: ignore[override]
        await asyncio.Event().wait()
        return None


async def test_reading_the_id_has_a_deadline() -> None:
    with pytest.raises(StoreTimeoutError, match="within 3 s"):
        await installation(SilentStores(), deadline_s=3.0)  # type: ignore[arg-type]


def test_an_installation_includes_adopted_ids() -> None:
    own = Installation("new", adopted=("old",))
    assert [own.includes(name) for name in ("new", "old", "other")] == [True, True, False]


MARKED = InstallationAnnotation("natsctl.io/installation", Installation("new", adopted=("old",)))


@pytest.mark.parametrize(
    ("annotated", "foreign"), [("new", ""), ("old", ""), ("other", "other"), ("", "")]
)
def test_an_object_with_the_id_of_another_installation_is_foreign(
    annotated: str, foreign: str
) -> None:
    metadata = Metadata(annotations={"natsctl.io/installation": annotated})
    assert (MARKED.on(metadata), MARKED.foreign(metadata)) == (annotated, foreign)


def test_an_object_without_an_id_is_not_foreign() -> None:
    metadata = Metadata(annotations={"mine": "other"})
    assert (MARKED.on(metadata), MARKED.foreign(metadata)) == ("", "")


def test_the_annotations_of_an_object_have_the_own_id() -> None:
    assert MARKED.annotations == {"natsctl.io/installation": "new"}


async def test_adopt_keeps_the_own_id_and_is_idempotent() -> None:
    stores = MemoryStores()
    own = await installation(stores)
    await adopt(stores, "lost-1")
    await adopt(stores, "lost-2")
    assert await adopt(stores, "lost-1") == Installation(own.id, ("lost-1", "lost-2"))
    assert await installation(stores) == Installation(own.id, ("lost-1", "lost-2"))


async def test_an_installation_cannot_adopt_itself() -> None:
    stores = MemoryStores()
    with pytest.raises(UsageError, match="is this installation"):
        await adopt(stores, (await installation(stores)).id)


async def test_assign_adopts_the_former_id() -> None:
    stores = MemoryStores()
    former = (await installation(stores)).id
    assert await assign(stores, "continued") == Installation("continued", (former,))
    assert await assign(stores, former) == Installation(former, ("continued",))


async def test_assign_works_on_a_new_system() -> None:
    stores = MemoryStores()
    assert await assign(stores, "continued") == Installation("continued")


@pytest.mark.parametrize("text", ["", "a b", "../x", "x" * 80, "-lead", "é" * 8])
async def test_text_that_is_no_id_is_refused(text: str) -> None:
    for change in (adopt, assign):
        with pytest.raises(UsageError, match="no id of an installation"):
            await change(MemoryStores(), text)
