"""Public names: loaded on first use, and deprecated ones keep working."""

import pytest

import natsctl
from natsctl.testing import in_virtual_time, running
from tests.support.stores.sample_objects import Thing


def test_a_renamed_name_warns_and_gives_the_new_object() -> None:
    with pytest.warns(DeprecationWarning, match=r"natsctl\.Action .* use natsctl\.ChangeType"):
        renamed = natsctl.Action  # type: ignore[attr-defined]
    assert renamed is natsctl.ChangeType


def test_an_unknown_name_raises_attribute_error() -> None:
    with pytest.raises(AttributeError, match="no attribute 'Unknown'"):
        natsctl.Unknown  # type: ignore[attr-defined]  # noqa: B018


class Counter(natsctl.Controller):
    """Counts its syncs."""

    things = natsctl.primary(natsctl.kv(Thing, bucket="things"))
    synced = 0

    async def sync_handler(self, key: str) -> float | None:
        self.synced += 1
        return None


@in_virtual_time
async def test_the_renamed_methods_of_a_runtime_warn_and_still_work() -> None:
    controller = Counter()
    async with running(controller) as harness:
        await harness.run_until_idle()
        with pytest.warns(DeprecationWarning, match="use sync"):
            await harness.runtime.visit("shop")
        assert controller.synced == 1
        with pytest.warns(DeprecationWarning, match="use collect_garbage"):
            await harness.runtime.sweep()
