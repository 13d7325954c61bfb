"""Runs a controller's work once in this process, for commands with `--local`."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Annotated

import typer

from natsctl.cli.framework.controllers import load_controller
from natsctl.cli.framework.options import StoreOptions
from natsctl.controller.controller import Controller
from natsctl.controller.runtime import ControllerRuntime
from natsctl.daemon.cluster import cluster_for
from natsctl.daemon.one_shot import inspecting
from natsctl.errors import UsageError
from natsctl.jetstream.stores import connect

LOCAL_HINT = ", or do it here with --local"
"""The end of the error if no daemon answers."""

LocalOption = Annotated[
    bool,
    typer.Option(
        "--local",
        help="Work in this process, without a daemon; --controller must be a class",
    ),
]


def local_controller(path: str | None) -> Controller:
    """Return a controller of the class at *path*; raises `UsageError` without a path."""
    if path is None:
        raise UsageError("--local needs the controller's class: give --controller M:C")
    return load_controller(path)


@asynccontextmanager
async def open_local(
    controller: Controller, stores: StoreOptions
) -> AsyncIterator[ControllerRuntime]:
    """Connect to the stores of the controller, and open its runtime; see `inspecting`."""
    async with (
        cluster_for([controller], stores.cluster) as kube,
        connect(stores.nats) as nats,
        inspecting(controller, nats, kube, owner_names=stores.owner_names) as runtime,
    ):
        yield runtime
