"""Explains the state of an object's watchers, from memory."""

from collections.abc import Callable, Sequence
from typing import Any

import msgspec

from natsctl.core.cache.informer import Informer
from natsctl.core.insight.explain import Explanation, Status, explanation_of, status_of
from natsctl.core.sync.host import Host
from natsctl.watchers.deliveries import Deliveries
from natsctl.watchers.sources import Source

Routes = Sequence[tuple[Deliveries, Sequence[Source]]]
"""The deliveries and sources of each resource kind."""


def explain(host: Host, key: str, routes: Routes) -> Explanation:
    """Explain an object, for the first resource kind that has it in its queue or its cache."""
    queued = (
        deliveries
        for deliveries, _ in routes
        if deliveries.queue.place(key) is not None or deliveries.failed(key)
    )
    deliveries = next(queued, routes[0][0])
    explanation = explanation_of(host, key, informer_of(key, routes).cache, deliveries.queue)
    return msgspec.structs.replace(explanation, failures=deliveries.failed(key))


def informer_of(key: str, routes: Routes) -> Informer[Any]:
    """Return the first informer that has the object, or the first informer."""
    informers = [source.informer for _, sources in routes for source in sources]
    return next((informer for informer in informers if key in informer.cache), informers[0])


def status(host: Host, routes: Routes, *, has: Callable[[str], bool]) -> Status:
    """Return the status of all resource kinds together; *has* selects this process's keys."""
    failing = {
        key: error for deliveries, _ in routes for key, error in deliveries.failures().items()
    }

    ages_s = [deliveries.oldest_unanswered_s for deliveries, _ in routes]
    return msgspec.structs.replace(
        status_of(host, has, len),
        keys=sum(
            deliveries.count(source.informer.cache.keys())
            for deliveries, sources in routes
            for source in sources
        ),
        failing=failing,
        unanswered=sum(deliveries.unanswered for deliveries, _ in routes),
        oldest_unanswered_s=max((age_s for age_s in ages_s if age_s is not None), default=None),
    )
