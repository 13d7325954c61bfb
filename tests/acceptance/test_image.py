"""The image of natsctl: its size, its requirements and its health check."""

from collections.abc import AsyncIterator, Awaitable, Callable
from importlib.metadata import version

import pytest

from tests.support.eventually import eventually
from tests.support.servers import docker as containers
from tests.support.servers.docker import docker, inspected, tried

pytestmark = [pytest.mark.docker, pytest.mark.timeout(1800)]  # the first one builds the image

MB = 1_000_000
OWN_MAX = 150 * MB  # above the base image
GREETINGS = "controllers.greetings:Greetings"
WEBAPPS = "controllers.webapps:WebApps"

Detached = Callable[..., Awaitable[str]]


@pytest.fixture
async def detached() -> AsyncIterator[Detached]:
    """Run containers without privileges and network, and return their names."""
    names: list[str] = []

    async def start(*words: str) -> str:
        limits = ("--read-only", "--cap-drop=ALL", "--network=none")
        names.append((await docker("run", "--detach", *limits, *words)).split()[-1])
        return names[-1]

    yield start
    for name in names:
        await docker("rm", "--force", "--volumes", name)


async def test_a_container_is_healthy_without_nats_and_unhealthy_without_its_port(
    image: str, detached: Detached
) -> None:
    waiting = await detached(image, "run", "-c", GREETINGS, "-s", "nats://127.0.0.1:1")
    (healthcheck,) = [(await inspected(image))["Config"]["Healthcheck"]["Test"][1:]]
    command = ("docker", "exec", waiting, "sh", "-c", *healthcheck)
    await eventually(lambda: _is(waiting, "healthy"))
    assert (await tried(*command))[0] == 0
    status, output_text = await tried("docker", "exec", waiting, "natsctl", "health", "--ready")
    assert status == 1
    assert "[-]nats failed" in output_text

    elsewhere = ("--env=NATSCTL_LISTEN=127.0.0.1:9999", *command[2:])
    status, output_text = await tried("docker", "exec", *elsewhere)
    assert (status, "cannot connect to 127.0.0.1:9999" in output_text) == (1, True), output_text
    status, output_text = await tried("docker", "exec", "--env=NATSCTL_LISTEN=", *command[2:])
    assert (status, "the address of the daemon is not set" in output_text) == (1, True), output_text


async def test_the_image_runs_without_a_writable_file_system_and_without_privileges(
    image: str,
) -> None:
    assert await _bare(image, "--version") == f"natsctl {version('natsctl')}\n"
    printed = await _bare(image, "rbac", "--no-kube", "--controller", WEBAPPS)
    assert "kind: ClusterRole" in printed


async def test_the_image_stays_below_its_size_limit(
    image: str, record_property: Callable[[str, object], None]
) -> None:
    history = await docker("history", "--human=false", "--format={{.Size}} {{.CreatedBy}}", image)
    newest_first = [line for line in history.splitlines() if line[:1].isdigit()]
    pythons = next(index for index, line in enumerate(newest_first) if 'CMD ["python3"]' in line)
    own = sum(int(line.split()[0]) for line in newest_first[:pythons])
    assert 0 < own < OWN_MAX
    size = (await inspected(image))["Size"]
    summary = f"the image has {size / MB:.0f} MB, {own / MB:.0f} of them beyond Python's own"
    record_property("docker", summary)


async def test_the_image_has_only_the_extras_of_its_build_argument(image: str) -> None:
    command = ("--entrypoint=python", image, "-c", "import opentelemetry.sdk")
    _, output = await tried("docker", "run", "--rm", *command)
    assert "No module named 'opentelemetry.sdk'" in output
    with containers.built("natsctl:tests-otlp", "--build-arg=EXTRAS=otlp") as larger_image:
        await docker("run", "--rm", command[0], larger_image, *command[2:])


async def _bare(image: str, *words: str) -> str:
    """Run the image as an arbitrary user without privileges, and return its output."""
    limits = ("--read-only", "--cap-drop=ALL", "--network=none", "--user=12345:12345")
    return await docker("run", "--rm", *limits, image, *words)


async def _is(name: str, health: str) -> bool:
    return bool((await inspected(name))["State"]["Health"]["Status"] == health)
