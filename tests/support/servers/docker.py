"""Support for tests with containers: the image of natsctl and the stack of docker-compose.yml."""

import asyncio
import functools
import json
import os
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from aiohttp import ClientSession

from tests.support.servers.ports import free_port

ROOT = Path(__file__).parents[3]
IMAGE = "natsctl:tests"

ASK_S = 20.0
BUILD_S = 1200.0
CALL_S = 240.0
OUTPUT_MAX = 4000  # characters of the output that an assertion shows


@functools.cache
def engine_answers() -> bool:
    """Return whether a Docker engine and Compose are available.

    The result is cached for the run.
    """
    if not shutil.which("docker"):
        return False
    commands = (("docker", "version"), ("docker", "compose", "version"))
    try:
        return all(_succeeds(words) for words in commands)
    except subprocess.TimeoutExpired:
        return False


@contextmanager
def built(name: str, *options: str) -> Iterator[str]:
    """Build the image under this name, and remove the name at the end.

    The build uses the network of the host, because containers may have no other network.
    """
    done = subprocess.run(
        ["docker", "build", "--network", "host", *options, "--tag", name, "."],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        timeout=BUILD_S,
        check=False,
    )
    assert done.returncode == 0, done.stdout.decode()[-OUTPUT_MAX:]
    try:
        yield name
    finally:
        removing = ["docker", "image", "rm", name]
        subprocess.run(removing, capture_output=True, timeout=CALL_S, check=True)


async def docker(*words: str, environ: dict[str, str] | None = None) -> str:
    """Run `docker` with these words, check that it succeeds, and return its output."""
    status, output = await tried("docker", *words, environ=environ)
    assert status == 0, f"docker {' '.join(words)}: {output[-OUTPUT_MAX:]}"
    return output


async def tried(*words: str, environ: dict[str, str] | None = None) -> tuple[int, str]:
    """Run a program in the project's root, and return its status and output."""
    process = await asyncio.create_subprocess_exec(
        *words,
        cwd=ROOT,
        env={**os.environ, **(environ or {})},
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
    )
    try:
        async with asyncio.timeout(CALL_S):
            output, _ = await process.communicate()
    except TimeoutError:
        process.kill()
        await process.wait()
        raise
    return process.returncode or 0, output.decode()


async def inspected(name: str) -> dict[str, Any]:
    objects: list[dict[str, Any]] = json.loads(await docker("inspect", name))
    return objects[0]


async def fetched(url: str) -> str:
    """Return the body of a response with status 200."""
    async with ClientSession(raise_for_status=True) as session, session.get(url) as response:
        return await response.text()


class Stack:
    """The stack of docker-compose.yml with its own project name and ports.

    A user gets this stack with the variables of `environ`. `url` is the URL of NATS, and `natsctl`,
    `prometheus` and `grafana` are the URLs of their published HTTP ports.
    """

    def __init__(self) -> None:
        port = free_port()
        self.url = f"nats://127.0.0.1:{port}"
        ports = {name: free_port() for name in ("NATSCTL", "PROMETHEUS", "GRAFANA")}
        self.natsctl, self.prometheus, self.grafana = (
            f"http://127.0.0.1:{service_port}" for service_port in ports.values()
        )
        self.environ = {
            "COMPOSE_FILE": "docker-compose.yml:tests/support/servers/compose.yml",
            "COMPOSE_PROJECT_NAME": f"natsctl-tests-{port}",
            "NATS_PORT": str(port),
            **{f"{name}_PORT": str(service_port) for name, service_port in ports.items()},
            "IMAGE_TAG": IMAGE.partition(":")[2],
        }

    async def up(self) -> None:
        await self.compose("up", "--no-build", "--wait")

    async def down(self) -> None:
        await self.compose(
            "--profile", "*", "down", "--volumes", "--remove-orphans", "--timeout", "1"
        )

    async def compose(self, *words: str) -> str:
        """Run `docker compose`, check that it succeeds, and return its output."""
        return await docker("compose", *words, environ=self.environ)

    async def tried(self, *words: str) -> tuple[int, str]:
        """Run a program with the stack's environment, and return its status and output."""
        return await tried(*words, environ=self.environ)

    async def inside(self, *words: str, service: str = "natsctl") -> tuple[int, str]:
        """Run a program in the container of a service, and return its status and output."""
        return await self.tried("docker", "compose", "exec", "-T", service, *words)

    async def state(self, service: str) -> dict[str, Any]:
        """Return the state of a service's container, running or not."""
        name = (await self.compose("ps", "--all", "--quiet", service)).strip()
        return dict((await inspected(name))["State"])


def _succeeds(words: tuple[str, ...]) -> bool:
    done = subprocess.run(words, capture_output=True, timeout=ASK_S, check=False)
    return done.returncode == 0
