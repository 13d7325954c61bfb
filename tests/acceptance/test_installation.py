"""`natsctl installation`: the id of a NATS system, and the ids that it takes over."""

import re

from nats.js import JetStreamContext

from tests.support.cli.natsctl_command import Natsctl

GREETINGS = "controllers.greetings:Greetings"
LOST = "1f0c9e77a2b34d58"


async def id_of(natsctl: Natsctl) -> str:
    """Return the id after a daemon has made one."""
    async with natsctl.running("run", "-c", GREETINGS) as running:
        await running.says("primaries listed, syncing")
    found: str = (await natsctl("installation", "show", "-o", "json")).json["id"]
    return found


async def test_a_system_without_daemons_has_no_id_yet(
    natsctl: Natsctl, jetstream: JetStreamContext
) -> None:
    shown = await natsctl("installation", "show")
    assert (shown.status, shown.out) == (3, "")
    assert "the first daemon makes one" in shown.err
    assert await jetstream.streams_info() == []


async def test_the_first_daemon_makes_an_id_and_the_next_keeps_it(natsctl: Natsctl) -> None:
    made = await id_of(natsctl)
    assert re.fullmatch(r"[0-9a-f]{16}", made)
    assert await id_of(natsctl) == made
    assert await natsctl.done("installation", "show") == f"installation {made}\n"


async def test_objects_of_a_lost_installation_are_taken_over_after_confirmation(
    natsctl: Natsctl,
) -> None:
    made = await id_of(natsctl)
    refused = await natsctl("installation", "adopt", LOST)
    assert refused.status == 2
    assert await natsctl.done("installation", "show") == f"installation {made}\n"
    done = await natsctl("installation", "adopt", LOST, "--yes")
    assert done.out == f"installation {made}\nadopted      {LOST}\n"
    assert "restart them" in done.err
    again = await natsctl("installation", "adopt", made, "--yes")
    assert again.status == 2
    assert "there is nothing to take over" in again.err


async def test_a_new_system_continues_the_installation_that_it_replaces(natsctl: Natsctl) -> None:
    made = await id_of(natsctl)
    await natsctl.done("installation", "set", LOST, "--yes")
    assert await natsctl.done("installation", "show") == (
        f"installation {LOST}\nadopted      {made}\n"
    )
    assert await id_of(natsctl) == LOST


async def test_a_text_that_is_no_id_is_refused(natsctl: Natsctl) -> None:
    refused = await natsctl("installation", "set", "no id!", "--yes")
    assert refused.status == 2
    assert "'no id!' is no id of an installation" in refused.err
