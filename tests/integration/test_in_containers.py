"""Controllers and tests work with NATS in a container as with a local process."""

import asyncio
import os
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

import natsctl
from natsctl import Controller, ControllerRuntime, Object, kv, primary
from natsctl.errors import NatsctlError
from tests.support.eventually import eventually
from tests.support.plugins.server_location import KUBE, NATS
from tests.support.servers import k3s as kube_k3s
from tests.support.servers import nats_container as nats_containers
from tests.support.servers.docker import ROOT, docker
from tests.support.servers.nats_container import ContainedNatsServer

pytestmark = [pytest.mark.docker, pytest.mark.timeout(600)]

FILE = "tests/integration/test_lease.py"
KUBE_FILE = "tests/contract/test_manifests.py"


class Boat(Object, frozen=True):
    pass


class Boats(Controller):
    boats = primary(kv(Boat, bucket="boats"))
    resync_s = 3600

    def __init__(self) -> None:
        self.synced: set[str] = set()

    async def sync_handler(self, key: str) -> None:
        self.synced.add(key)

    async def comes(self, key: str) -> None:
        """Store the key, with retries, and wait until it is synced."""
        await eventually(lambda: self._stored(key))
        await eventually(lambda: key in self.synced)

    async def _stored(self, key: str) -> bool:
        try:
            await self.boats.put(key, Boat())
        except NatsctlError as error:
            raise AssertionError(str(error)) from error
        return True


@pytest.fixture
async def contained(tmp_path: Path) -> AsyncIterator[ContainedNatsServer]:
    async with ContainedNatsServer(tmp_path / "nats") as server:
        yield server


async def test_a_controller_survives_kills_pauses_and_stops_of_the_nats_container(
    contained: ContainedNatsServer,
) -> None:
    boats = Boats()
    async with natsctl.connect(contained.url) as nats:
        runtime = ControllerRuntime(boats, nats=nats)
        async with asyncio.TaskGroup() as group:
            group.create_task(runtime.run())
            await runtime.synced.wait()
            await boats.comes("ann")
            contained.kill()
            await contained.start()
            await boats.comes("bob")
            contained.pause()
            await eventually(lambda: not nats.connection.connected)
            contained.resume()
            await boats.comes("cid")
            await contained.stop()
            assert not contained.running
            contained.config = "max_payload: 4096"
            await contained.start()
            await boats.comes("dan")
            assert nats.connection.client.max_payload == 4096
            assert set(boats.boats.keys()) == {"ann", "bob", "cid", "dan"}
            runtime.stop()


async def test_the_tests_of_a_file_run_with_nats_in_containers_if_requested() -> None:
    start_time = (await docker("info", "--format={{.SystemTime}}")).strip()
    status, output = await _pytest(FILE, "--setup-show", environ={NATS: "container", KUBE: ""})
    assert status == 0, output
    assert f"{NATS}: in containers" in output
    servers_set_up = output.count("SETUP    F nats_server")
    assert servers_set_up > 1
    assert await _created(start_time, nats_containers.IMAGE) == servers_set_up


@pytest.mark.long
async def test_the_tests_of_a_file_run_with_a_cluster_in_a_container_if_requested() -> None:
    start_time = (await docker("info", "--format={{.SystemTime}}")).strip()
    status, output = await _pytest(KUBE_FILE, environ={NATS: "", KUBE: "container"})
    assert status == 0, output
    assert f"{KUBE}: in containers" in output
    assert await _created(start_time, kube_k3s.IMAGE) == 1


async def test_a_wrong_server_location_is_a_usage_error(tmp_path: Path) -> None:
    absent = {"DOCKER_HOST": f"unix://{tmp_path / 'nobody'}", KUBE: "container"}
    for environ, error in (
        ({NATS: "cluster"}, f"{NATS} is 'cluster': it is 'container', or is not set"),
        (absent, f"{KUBE} is 'container', and no Docker engine answers"),
    ):
        status, output = await _pytest(FILE, environ=environ)
        assert status == pytest.ExitCode.USAGE_ERROR
        assert error in output


async def _created(since: str, image: str) -> int:
    """Return the number of containers of an image that the engine created since then."""
    filters = (f"--filter=image={image}", "--filter=event=create", "--filter=type=container")
    container_ids = await docker(
        "events", f"--since={since}", "--until=0s", *filters, "--format={{.ID}}"
    )
    return len(container_ids.split())


async def _pytest(*words: str, environ: dict[str, str]) -> tuple[int, str]:
    """Run tests in a child process, and return its status and output."""
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "pytest", *words),
        cwd=ROOT,
        env={**os.environ, **environ},
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
    )
    try:
        async with asyncio.timeout(300):
            output, _ = await process.communicate()
    except TimeoutError:
        process.kill()
        await process.wait()
        raise
    return process.returncode or 0, output.decode()
