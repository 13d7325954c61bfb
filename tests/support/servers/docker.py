"""What tests do with containers: the image of natsctl, and the stack of docker-compose.yml."""

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
OUTPUT_MAX = 4000  # what an assertion shows of it, in characters


@functools.cache
def engine_answers() -> bool:
    """Say whether there is a Docker engine here, and Compose to go with it.

    Whatever test needs a container asks this, once per run.
    """
    if not shutil.which("docker"):
        return False
    fetched = (("docker", "version"), ("docker", "compose", "version"))
    try:
        return all(_succeeds(words) for words in fetched)
    except subprocess.TimeoutExpired:
        return False


@contextmanager
def built(name: str, *options: str) -> Iterator[str]:
    """Have the image under this name; what it was built from stays with the engine.

    It is built on the host's network, because that is all that is there where containers have no
    way out.
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
    """Run `docker` with these words, which succeeds; return what it wrote."""
    status, output = await tried("docker", *words, environ=environ)
    assert status == 0, f"docker {' '.join(words)}: {output[-OUTPUT_MAX:]}"
    return output


async def tried(*words: str, environ: dict[str, str] | None = None) -> tuple[int, str]:
    """Run a program in our folder; return its status, and what it wrote to either output."""
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
    """Return what the engine knows of an image or a container."""
    found: list[dict[str, Any]] = json.loads(await docker("inspect", name))
    return found[0]


async def fetched(url: str) -> str:
    """Return what is answered there, which is a 200."""
    async with ClientSession(raise_for_status=True) as session, session.get(url) as response:
        return await response.text()


class Stack:
    """The stack of docker-compose.yml, under a name and ports of its own.

    It is what a user has who says so in `environ`, the environment. Published are `url`, where
    NATS listens, and `natsctl`, `prometheus` and `grafana`, where these can be asked.
    """

    def __init__(self) -> None:
        port = free_port()
        self.url = f"nats://127.0.0.1:{port}"
        fetched = {name: free_port() for name in ("NATSCTL", "PROMETHEUS", "GRAFANA")}
        self.natsctl, self.prometheus, self.grafana = (
            f"http://127.0.0.1:{at}" for at in fetched.values()
        )
        self.environ = {
            "COMPOSE_FILE": "docker-compose.yml:tests/support/servers/compose.yml",
            "COMPOSE_PROJECT_NAME": f"natsctl-tests-{port}",
            "NATS_PORT": str(port),
            **{f"{name}_PORT": str(at) for name, at in fetched.items()},
            "IMAGE_TAG": IMAGE.partition(":")[2],
        }

    async def up(self) -> None:
        """Start it, and wait until it is well."""
        await self.compose("up", "--no-build", "--wait")

    async def down(self) -> None:
        """Stop it, and remove what it has made."""
        await self.compose(
            "--profile", "*", "down", "--volumes", "--remove-orphans", "--timeout", "1"
        )

    async def compose(self, *words: str) -> str:
        """Run `docker compose` with these words, which succeeds; return what it wrote."""
        return await docker("compose", *words, environ=self.environ)

    async def tried(self, *words: str) -> tuple[int, str]:
        """Run a program with the stack's environment; return its status and its output."""
        return await tried(*words, environ=self.environ)

    async def inside(self, *words: str, service: str = "natsctl") -> tuple[int, str]:
        """Run a program beside a service; return its status and its output."""
        return await self.tried("docker", "compose", "exec", "-T", service, *words)

    async def state(self, service: str) -> dict[str, Any]:
        """Return how a service's container is, whether or not it runs."""
        name = (await self.compose("ps", "--all", "--quiet", service)).strip()
        return dict((await inspected(name))["State"])


def _succeeds(words: tuple[str, ...]) -> bool:
    done = subprocess.run(words, capture_output=True, timeout=ASK_S, check=False)
    return done.returncode == 0
