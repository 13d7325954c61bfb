"""Commands with long work draw a progress bar on a terminal, and nothing elsewhere."""

from pathlib import Path

import pytest

from tests.support.cli.natsctl_command import Natsctl

GREETINGS = "controllers.greetings:Greetings"
SHOPS = "tests.support.controllers.shop_versions:Shops"
CLEARED = "\x1b[2K"  # the last thing that a bar writes

PLAN = ("plan", "-c", GREETINGS)
MIGRATE = ("migrate", "-c", SHOPS)
SIMULATE = ("simulate", "-c", GREETINGS, "-f", "greetings.yaml", "--runs", "3")


@pytest.fixture
async def objects(folder: Path, natsctl: Natsctl) -> None:
    """Three keys to plan, three objects to migrate, and the file of a simulation."""
    (folder / "greetings.yaml").write_text("{bucket: greetings, key: shop, spec: {text: hi}}")
    for key in ("a", "b", "c"):
        await natsctl.done("put", "greetings", key, "spec: {text: hi}", "--create-bucket")
        await natsctl.done("put", "shops", key, "spec: {image: nginx}", "--create-bucket")
        await natsctl.done("put", "signs", key, "spec: {image: nginx}", "--create-bucket")


@pytest.mark.usefixtures("objects")
@pytest.mark.parametrize(
    ("words", "label"),
    [(PLAN, "planning"), (MIGRATE, "migrating shops"), (SIMULATE, "simulating")],
)
async def test_a_terminal_shows_the_progress_until_the_last_step(
    natsctl: Natsctl, words: tuple[str, ...], label: str
) -> None:
    result = await natsctl.drawn(*words)
    assert result.status == 0, result
    assert label in result.err
    assert "3/3" in result.err
    assert result.err.endswith(CLEARED)
    assert label not in result.out


@pytest.mark.usefixtures("objects")
@pytest.mark.parametrize("words", [PLAN, MIGRATE, SIMULATE])
async def test_standard_error_stays_empty_without_a_terminal(
    natsctl: Natsctl, words: tuple[str, ...]
) -> None:
    result = await natsctl(*words)
    assert (result.status, result.err) == (0, "")
