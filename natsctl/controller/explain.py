"""Explains a key of a `Controller`: its syncs, and what it owns and reads."""

from collections.abc import Sequence
from typing import Any

import msgspec

from natsctl.controller.slots.open_slots import Opened
from natsctl.controller.slots.owned import Owned
from natsctl.core.insight.explain import Explanation, known
from natsctl.core.queue.workqueue import Workqueue
from natsctl.core.sync.journal import Journal
from natsctl.telemetry.hiding import hidden


def explain(
    controller: str, key: str, opened: Opened, queue: Workqueue[str], journal: Journal
) -> Explanation:
    """Return the explanation of a key, with the objects that it owns and reads."""
    return msgspec.structs.replace(
        known(controller, key, opened.primary.informer.cache, queue, journal),
        owned=_owned(key, opened.secondaries),
        reads=list(opened.reads.depends_on(key)),
        contested=[hidden(text) for text in opened.contests().get(key, [])],
    )


def _owned(key: str, secondaries: Sequence[Owned[Any]]) -> dict[str, list[str]]:
    """Return what was made for the key, by kind: slots may share one."""
    found: dict[str, list[str]] = {secondary.kind.name: [] for secondary in secondaries}
    for secondary in secondaries:
        found[secondary.kind.name] += [stored.key for stored in secondary.owned_stored(key)]
    return found
