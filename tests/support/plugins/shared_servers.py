"""Gives the tests that share something expensive to one worker, so that no other worker starts it.

A kube-apiserver takes three seconds of processor time to start, and works while it is idle.
Chromium is similar. A worker writes a file with the group of each test, because the process that
distributes the tests does not know their fixtures.
"""

import json
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from xdist.scheduler import LoadScopeScheduling

if TYPE_CHECKING:
    from xdist.remote import Producer
    from xdist.workermanage import WorkerController

SHARED = {  # a fixture of the group's tests, and the name of the group
    "restartable_kube_server": "restarted kube-apiserver",
    "kube_server": "kube-apiserver",
    "chromium": "chromium",
    "tour": "tour",
    "report": "report of a plain pytest",
}
KUBE = "kube"  # the parameter of a contract test that requests `kube_server` while it runs
FILES_TOGETHER = "tests/unit/"  # the tests of a file share what the first one imports
FILE = "groups_file"
WRITER = "gw0"


class GroupScheduling(LoadScopeScheduling):  # type: ignore[misc]  # it has no types
    """Gives a free worker the next group or test. The short tests of `tests/unit` end a run."""

    def __init__(self, config: pytest.Config, log: "Producer", groups: Path) -> None:
        super().__init__(config, log)
        self._file = groups
        self._groups: dict[str, str] = {}

    def schedule(self) -> None:
        """Distribute the tests, which every worker has collected."""
        self._groups = json.loads(self._file.read_text())
        super().schedule()

    def _split_scope(self, nodeid: str) -> str:
        return self._groups.get(nodeid, nodeid)


class Distribution:
    """The part of the plugin in the process that distributes the tests."""

    def __init__(self, folder: Path) -> None:
        self._file = folder / "groups.json"

    def pytest_configure_node(self, node: "WorkerController") -> None:
        """Tell a worker which file to write."""
        node.workerinput[FILE] = str(self._file)

    def pytest_xdist_make_scheduler(
        self, config: pytest.Config, log: "Producer"
    ) -> LoadScopeScheduling | None:
        """Return the scheduler for `--dist loadgroup`."""
        is_grouped = config.getoption("dist") == "loadgroup"
        return GroupScheduling(config, log, self._file) if is_grouped else None


def pytest_configure(config: pytest.Config) -> None:
    """Prepare the distribution, if this process distributes tests."""
    if config.getoption("dist", "no") != "no" and not hasattr(config, "workerinput"):
        folder = tempfile.TemporaryDirectory(prefix="natsctl-tests-")
        config.add_cleanup(folder.cleanup)
        config.pluginmanager.register(Distribution(Path(folder.name)))


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Put the tests that share something first, and let one worker write the groups."""
    worker = getattr(config, "workerinput", None)
    if worker is None:
        return
    shared = {item.nodeid: group for item in items if (group := _group(item))}
    items.sort(key=lambda item: item.nodeid not in shared)
    if worker["workerid"] == WRITER:
        together = [item.nodeid for item in items if item.nodeid.startswith(FILES_TOGETHER)]
        files = {nodeid: nodeid.partition("::")[0] for nodeid in together}
        Path(worker[FILE]).write_text(json.dumps(files | shared))


def _group(item: pytest.Item) -> str | None:
    fixtures = set(getattr(item, "fixturenames", ()))
    if hasattr(item, "callspec") and KUBE in map(_text, item.callspec.params.values()):
        fixtures.add("kube_server")
    return next((group for fixture, group in SHARED.items() if fixture in fixtures), None)


def _text(parameter: object) -> str:
    return parameter if isinstance(parameter, str) else ""
