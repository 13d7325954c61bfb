"""Keeps the resources of an external system, and their former states."""

import asyncio
import copy
from typing import Any

Fields = dict[str, Any]

VERSIONS_MAX = 50  # former states that a late read may return


class ExternalState:
    """The resources of one external system, and their former states."""

    def __init__(self) -> None:
        self.resources: dict[str, Fields] = {}
        self.unnamed: set[str] = set()  # names that the system chose
        self.creations = 0
        self._former: list[tuple[float, dict[str, Fields]]] = []  # each until this time

    def change(self, name: str, fields: Fields | None) -> None:
        """Set the fields of a resource; None removes it."""
        now = asyncio.get_running_loop().time()
        self._former.append((now, copy.deepcopy(self.resources)))
        del self._former[:-VERSIONS_MAX]
        if fields is None:
            del self.resources[name]
        else:
            self.resources[name] = copy.deepcopy(fields)

    def seen(self, late_s: float) -> dict[str, Fields]:
        """Return the resources as they were *late_s* seconds ago."""
        moment = asyncio.get_running_loop().time() - late_s
        former = (resources for until, resources in self._former if until > moment)
        return copy.deepcopy(next(former, self.resources))
