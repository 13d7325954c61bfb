"""Loads the controllers that a command names."""

import sys
from pathlib import Path

from natsctl.controller.controller import Controller
from natsctl.controller.slots.declare import slots
from natsctl.daemon.loader import load, load_runnable, make
from natsctl.daemon.operator import Guest
from natsctl.errors import UsageError
from natsctl.model.kinds import KvKind

Kinds = list[KvKind[object]]


def load_controller(path: str) -> Controller:
    """Return a controller of the class at *path*; raises as `load` and `make` do."""
    _search_current_folder()
    return make(load(path), path)


def load_kinds(path: str | None, bucket: str) -> Kinds:
    """Return the kinds that the controller at *path* declares for the bucket, none without a path.

    Raises `UsageError` if the controller has no kind for the bucket, and as `load_controller` does.
    """
    if path is None:
        return []
    declared = (slot.kind for slot in slots(type(load_controller(path))))
    kinds = [kind for kind in declared if isinstance(kind, KvKind) and kind.bucket == bucket]
    if not kinds:
        raise UsageError(f"{path} has no kind in bucket {bucket}")
    return kinds


def load_runnable_controller(path: str) -> Controller | Guest:
    """Return what `natsctl run` runs from *path*; raises as `load_runnable` and `make` do."""
    _search_current_folder()
    return make(load_runnable(path), path)


def _search_current_folder() -> None:
    folder = str(Path.cwd())
    if folder not in sys.path:
        sys.path.insert(0, folder)
