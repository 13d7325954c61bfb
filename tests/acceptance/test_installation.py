"""`natsctl installation` shows the id of a NATS system and the ids that it adopts."""

import re

from nats.js import JetStreamContext

from tests.support.cli.natsctl_command import Natsctl

GREETINGS = "controllers.greetings:Greetings"
LOST = "1f0c9e77a2b34d58"


async def id_of(natsctl: Natsctl) -> str:
    """Run a daemon, which creates an id if there is none, and return the id."""
    async with natsctl.running("run", "-c", GREETINGS) as running:
        await running.logged("primaries listed, syncing")
    installation_id: str = (await natsctl("repair", "installation", "show", "-o", "json")).json[
        "id"
    ]
    return installation_id


async def test_a_system_without_daemons_has_no_id_yet(
    natsctl: Natsctl, jetstream: JetStreamContext
) -> None:
    shown = await natsctl("repair", "installation", "show")
    assert (shown.status, shown.out) == (3, "")
    assert "the first daemon creates one" in shown.err
    assert await jetstream.streams_info() == []


async def test_the_first_daemon_creates_an_id_and_the_next_keeps_it(natsctl: Natsctl) -> None:
    created = await id_of(natsctl)
    assert re.fullmatch(r"[0-9a-f]{16}", created)
    assert await id_of(natsctl) == created
    assert await natsctl.done("repair", "installation", "show") == f"installation {created}\n"


async def test_adopt_takes_over_a_lost_installation_after_confirmation(
    natsctl: Natsctl,
) -> None:
    created = await id_of(natsctl)
    refused = await natsctl("repair", "installation", "adopt", LOST)
    assert refused.status == 2
    assert await natsctl.done("repair", "installation", "show") == f"installation {created}\n"
    done = await natsctl("repair", "installation", "adopt", LOST, "--yes")
    assert done.out == f"installation {created}\nadopted      {LOST}\n"
    assert "restart them" in done.err
    repeated = await natsctl("repair", "installation", "adopt", created, "--yes")
    assert repeated.status == 2
    assert "there is nothing to take over" in repeated.err


async def test_set_continues_the_installation_that_a_new_system_replaces(natsctl: Natsctl) -> None:
    created = await id_of(natsctl)
    await natsctl.done("repair", "installation", "set", LOST, "--yes")
    assert await natsctl.done("repair", "installation", "show") == (
        f"installation {LOST}\nadopted      {created}\n"
    )
    assert await id_of(natsctl) == LOST


async def test_set_refuses_an_invalid_id(natsctl: Natsctl) -> None:
    refused = await natsctl("repair", "installation", "set", "no id!", "--yes")
    assert refused.status == 2
    assert "'no id!' is no id of an installation" in refused.err
