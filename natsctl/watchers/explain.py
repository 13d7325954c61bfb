"""Why an object's watchers know what they know: read from memory, for people."""

from collections.abc import Callable, Sequence
from typing import Any

import msgspec

from natsctl.core.cache.informer import Informer
from natsctl.core.insight.explain import Explanation, Status, explanation_of, status_of
from natsctl.core.sync.host import Host
from natsctl.core.sync.journal import Journal
from natsctl.watchers.deliveries import Deliveries
from natsctl.watchers.sources import Source

Lines = Sequence[tuple[Deliveries, Sequence[Source]]]
"""Of each resource kind who tells, and from where."""


def explain(controller: str, key: str, lines: Lines, journal: Journal) -> Explanation:
    """Return what is known of an object, in the first resource kind that has it or tells of it."""
    telling = (at for at, _ in lines if at.queue.place(key) is not None or at.failed(key))
    deliveries = next(telling, lines[0][0])
    found = explanation_of(
        controller, key, informer_of(key, lines).cache, deliveries.queue, journal
    )
    return msgspec.structs.replace(found, failures=deliveries.failed(key))


def informer_of(key: str, lines: Lines) -> Informer[Any]:
    """Return the first informer that has the object; the first of all where none has."""
    every = [source.informer for _, sources in lines for source in sources]
    return next((informer for informer in every if key in informer.cache), every[0])


def status(host: Host, lines: Lines, *, has: Callable[[str], bool]) -> Status:
    """Return how it is doing, all resource kinds together; *has* says which keys are our own."""
    failing = {key: why for deliveries, _ in lines for key, why in deliveries.failures().items()}
    return msgspec.structs.replace(status_of(host, has), failing=failing)
