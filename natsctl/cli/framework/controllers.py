"""The controllers that a command is about, and what commands that run them take."""

import sys
from pathlib import Path
from typing import Annotated

import typer

from natsctl.controller.controller import Controller
from natsctl.controller.slots.declare import slots
from natsctl.daemon.loader import load, load_runnable, make
from natsctl.daemon.operator import Guest
from natsctl.errors import UsageError
from natsctl.model.kinds import KvKind

_HELP = "a controller class, package.module:Name; the current folder is looked in first"


ControllersOption = Annotated[
    list[str], typer.Option("--controller", "-c", help=f"{_HELP}; may be repeated", metavar="M:C")
]
ControllerOption = Annotated[str, typer.Option("--controller", "-c", help=_HELP, metavar="M:C")]
PortOption = Annotated[
    int | None,
    typer.Option(
        min=0,
        max=65535,
        metavar="PORT",
        help="where the private nats-server listens, 0 is any free port [default: 4222 if free]",
    ),
]
WorkersOption = Annotated[
    int | None,
    typer.Option(min=1, help="keys that each controller syncs at once", metavar="NUMBER"),
]


Kinds = list[KvKind[object]]


def controller_of(path: str) -> Controller:
    """Return a controller of the class at *path*; raises what `load` and `make` raise."""
    _look_here()
    return make(load(path), path)


def kinds_of(path: str, bucket: str) -> Kinds:
    """Return the kinds that the controller at *path* declares for the bucket.

    Raises `UsageError` if there are none, and what `controller_of` raises.
    """
    declared = (slot.kind for slot in slots(type(controller_of(path))))
    found = [kind for kind in declared if isinstance(kind, KvKind) and kind.bucket == bucket]
    if not found:
        raise UsageError(f"{path} has no kind in bucket {bucket}")
    return found


def runnable_of(path: str) -> Controller | Guest:
    """Return what can be run at *path*; raises what `load_runnable` and `make` raise."""
    _look_here()
    return make(load_runnable(path), path)


def _look_here() -> None:
    here = str(Path.cwd())
    if here not in sys.path:
        sys.path.insert(0, here)
