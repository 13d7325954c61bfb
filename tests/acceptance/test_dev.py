"""`natsctl dev` restarts controllers after an edit, and survives errors in their source."""

import json
import re
import signal
from pathlib import Path

from nats.js.errors import NotFoundError

from tests.support.cli.natsctl_command import Natsctl
from tests.support.cli.process_tree import alive, descendants
from tests.support.clients.plain_client import plain_jetstream
from tests.support.eventually import eventually
from tests.support.servers.ports import free_port

SYNCING = "primaries listed, syncing"
SOURCE = """
from natsctl import Controller, Object, kv, primary, secondary

class Thing(Object, frozen=True):
    spec: dict[str, str] = {}

class Things(Controller):
    things = primary(kv(Thing, bucket="things"))
    copies = secondary(kv(Thing, bucket="copies"))

    async def sync_handler(self, key):
        if self.things.get(key) is not None:
            await self.copies.apply(key, Thing(spec={"made": "by version 1"}))
"""


def write(folder: Path, source: str) -> None:
    """Save the file as an editor does: write a new file and rename it."""
    (folder / "things.new").write_text(source)
    (folder / "things.new").rename(folder / "things.py")


async def copied_version(url: str) -> str | None:
    """Return the version in the copy of `a`, read by a plain NATS client."""
    async with plain_jetstream(url) as jetstream:
        try:
            bucket = await jetstream.key_value("copies")
            return str(json.loads((await bucket.get("a")).value or b"")["spec"]["made"])
        except NotFoundError:
            return None


async def test_an_edit_restarts_the_controllers_and_a_syntax_error_waits_for_the_next_save(
    folder: Path,
) -> None:
    port = free_port()
    url = f"nats://127.0.0.1:{port}"
    natsctl = Natsctl(folder, url)
    write(folder, SOURCE)
    words = ("dev", "--controller", "things:Things", "--port", str(port))

    async def shows(version: int) -> bool:
        assert await copied_version(url) == f"by version {version}"
        return True

    async with natsctl.running(*words) as running:
        await running.logged(SYNCING)
        await natsctl.done("put", "things", "a", "spec: {}")
        await eventually(lambda: shows(1), every_s=0.1)
        write(folder, SOURCE.replace("version 1", "version 2"))
        await eventually(lambda: shows(2), every_s=0.1)
        assert "restarting after a change  files=things.py" in running.log
        write(folder, SOURCE + "\nclass Broken(:\n")
        await running.logged("class Broken(:")
        await running.logged("save a change to start the controllers again")
        write(folder, SOURCE.replace("version 1", "version 3"))
        await eventually(lambda: shows(3), every_s=0.1)
        started = descendants(running.process.pid)
        assert await running.ends(signal.SIGINT) == 0
        assert not any(map(alive, started))


async def test_dev_ignores_settings_of_another_server_and_no_process_outlives_it(
    folder: Path,
) -> None:
    (folder / "natsctl.toml").write_text(
        "[nats]\ncontext = 'nowhere'\ntls_ca = 'none.pem'\n[logs]\nlevel = 'debug'\n"
    )
    natsctl = Natsctl(folder, "nats://127.0.0.1:1", environ={"NATSCTL_WORKERS": "3"})
    write(folder, SOURCE)
    words = ("run", "--reload", "--embedded", "--store-dir", ".natsctl", "-c", "things:Things")
    async with natsctl.running(*words, "--port", "0") as running:
        await running.logged(f"INFO    {SYNCING}  controller=things primaries=0")
        assert "DEBUG " in running.log
        url = re.search(r"private nats-server listens  url=(nats://[\d.:]+)", running.log)
        assert url, running.log
        await Natsctl(folder.parent, url[1]).done("put", "things", "a", "spec: {}")
        started = descendants(running.process.pid)
        assert len(started) >= 2
        await running.ends(signal.SIGKILL)

        def none_is_alive() -> bool:
            remaining = [pid for pid in started if alive(pid)]
            assert not remaining, running.log
            return True

        await eventually(none_is_alive)
    async with natsctl.running("dev", "-c", "things:Things", "--port", "0") as running:
        await running.logged(f"{SYNCING}  controller=things primaries=1")  # it kept the objects
        assert await running.ends(signal.SIGTERM) == 0
