"""Shares between the workers of pytest-xdist what each of them would start again.

`--dist loadgroup` runs the tests that share a server in one worker; see `shared_servers`. The first
worker that has collected the tests tells the controller their groups, in a file.
"""

import json
import shutil
import tempfile
from pathlib import Path
from typing import Any

import pytest

from tests.support.cli.forked_process import FORKS
from tests.support.plugins.shared_servers import GROUP, GROUPED

FORK_SERVER, GROUPS = "fork_server", "groups"
FOLDER: pytest.StashKey[str] = pytest.StashKey()


@pytest.hookimpl(optionalhook=True)  # a run without xdist does not know it
def pytest_configure_node(node: Any) -> None:
    """Tell a worker the address of the fork server of all workers, and the file for the groups."""
    if FOLDER not in node.config.stash:
        node.config.stash[FOLDER] = tempfile.mkdtemp()
    node.workerinput[FORK_SERVER] = FORKS.address
    node.workerinput[GROUPS] = f"{node.config.stash[FOLDER]}/{GROUPS}"
    node.workerinput[GROUPED] = node.config.getvalue("dist") == "loadgroup"


def pytest_configure(config: pytest.Config) -> None:
    """Use the fork server of all workers in a worker."""
    given = getattr(config, "workerinput", {})
    if FORK_SERVER in given:
        FORKS.share(given[FORK_SERVER])


def pytest_unconfigure(config: pytest.Config) -> None:
    if FOLDER in config.stash:
        shutil.rmtree(config.stash[FOLDER])


@pytest.hookimpl(tryfirst=True)  # before the worker reports that it has collected the tests
def pytest_collection_finish(session: pytest.Session) -> None:
    given = getattr(session.config, "workerinput", {})
    if given.get("workerid") == "gw0":
        found = {item.nodeid: item.stash.get(GROUP, None) for item in session.items}
        groups = {name: group for name, group in found.items() if group is not None}
        Path(given[GROUPS]).write_text(json.dumps(groups))


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """Schedule by groups; the own `loadgroup` of xdist 3.8 has no effect with pytest 9.2."""
    if config.getvalue("dist") != "loadgroup":
        return None
    from xdist.scheduler import LoadScopeScheduling  # type: ignore[import-untyped]  # noqa: PLC0415 - there may be no xdist

    class ByGroup(LoadScopeScheduling):  # type: ignore[misc]  # it is untyped
        groups: dict[str, str] | None = None

        def _split_scope(self, nodeid: str) -> str:
            if self.groups is None:
                folder = config.stash[FOLDER]
                self.groups = json.loads(Path(folder, GROUPS).read_text())
            return self.groups.get(nodeid, nodeid)

    return ByGroup(config, log)
