"""The image of natsctl: how large it is, what it needs, and how Docker knows that it is well."""

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
    """Run containers that may do nothing and reach nobody; gives their names."""
    names: list[str] = []

    async def start(*words: str) -> str:
        limits = ("--read-only", "--cap-drop=ALL", "--network=none")
        names.append((await docker("run", "--detach", *limits, *words)).split()[-1])
        return names[-1]

    yield start
    for name in names:
        await docker("rm", "--force", "--volumes", name)


async def test_who_needs_no_nats_yet_is_healthy_and_who_cannot_be_asked_is_not(
    image: str, detached: Detached
) -> None:
    waiting = await detached(image, "run", "-c", GREETINGS, "-s", "nats://127.0.0.1:1")
    (how,) = [(await inspected(image))["Config"]["Healthcheck"]["Test"][1:]]
    asked = ("docker", "exec", waiting, "sh", "-c", *how)
    await eventually(lambda: _is(waiting, "healthy"))
    assert (await tried(*asked))[0] == 0
    status, told = await tried("docker", "exec", waiting, "natsctl", "health", "--ready")
    assert status == 1
    assert "[-]nats failed" in told

    elsewhere = ("--env=NATSCTL_LISTEN=127.0.0.1:9999", *asked[2:])
    status, told = await tried("docker", "exec", *elsewhere)
    assert (status, "cannot connect to 127.0.0.1:9999" in told) == (1, True), told
    status, told = await tried("docker", "exec", "--env=NATSCTL_LISTEN=", *asked[2:])
    assert (status, "the address of the daemon is not set" in told) == (1, True), told


async def test_it_needs_nowhere_to_write_and_no_rights(image: str) -> None:
    assert await _bare(image, "--version") == f"natsctl {version('natsctl')}\n"
    printed = await _bare(image, "rbac", "--no-kube", "--controller", WEBAPPS)
    assert "kind: ClusterRole" in printed


async def test_the_image_is_no_larger_than_it_has_to_be(
    image: str, record_property: Callable[[str, object], None]
) -> None:
    history = await docker("history", "--human=false", "--format={{.Size}} {{.CreatedBy}}", image)
    newest_first = [line for line in history.splitlines() if line[:1].isdigit()]
    pythons = next(at for at, line in enumerate(newest_first) if 'CMD ["python3"]' in line)
    own = sum(int(line.split()[0]) for line in newest_first[:pythons])
    assert 0 < own < OWN_MAX
    whole = (await inspected(image))["Size"]
    told = f"the image has {whole / MB:.0f} MB, {own / MB:.0f} of them beyond Python's own"
    record_property("docker", told)


async def test_it_has_the_optional_dependencies_that_were_asked_for(image: str) -> None:
    asked = ("--entrypoint=python", image, "-c", "import opentelemetry.sdk")
    _, output = await tried("docker", "run", "--rm", *asked)
    assert "No module named 'opentelemetry.sdk'" in output
    with containers.built("natsctl:tests-otlp", "--build-arg=EXTRAS=otlp") as more:
        await docker("run", "--rm", asked[0], more, *asked[2:])


async def _bare(image: str, *words: str) -> str:
    """Run the image as nobody in particular, who may do nothing; return what it wrote."""
    limits = ("--read-only", "--cap-drop=ALL", "--network=none", "--user=12345:12345")
    return await docker("run", "--rm", *limits, image, *words)


async def _is(name: str, health: str) -> bool:
    return bool((await inspected(name))["State"]["Health"]["Status"] == health)
