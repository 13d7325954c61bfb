"""A hub with a JetStream domain of its own, and leaf nodes of it."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from tests.support.eventually import eventually
from tests.support.servers.nats_server import NatsServer
from tests.support.servers.ports import free_port


@asynccontextmanager
async def hub_server(folder: Path) -> AsyncIterator[NatsServer]:
    """Run a server that takes leaf nodes, with the domain `hub`."""
    listen = f"leafnodes {{ listen: 127.0.0.1:{free_port()} }}"
    config = f'jetstream {{ store_dir: "{folder}", domain: hub }}\n{listen}'
    async with NatsServer(folder, name="hub", config=config, jetstream=False) as server:
        yield server


@asynccontextmanager
async def leaf_server(
    folder: Path, hub: NatsServer, *, domain: str = ""
) -> AsyncIterator[NatsServer]:
    """Run a leaf node of the hub, without streams of its own unless it has a *domain*."""
    port = hub.config.rpartition(":")[2].strip(" }")
    config = f"""leafnodes {{
        reconnect: 1
        remotes: [{{ url: "nats-leaf://127.0.0.1:{port}" }}]
    }}"""
    if domain:
        config += f'\njetstream {{ store_dir: "{folder}", domain: {domain} }}'
    async with NatsServer(folder, name="leaf", config=config, jetstream=False) as server:
        await eventually(lambda: "Leafnode connection created" in server.log())
        yield server
