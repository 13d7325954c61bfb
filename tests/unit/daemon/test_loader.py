"""What is wrong with a controller's path, and what was meant."""

import itertools
from pathlib import Path

import pytest

from natsctl.daemon.loader import load, load_runnable
from natsctl.errors import UsageError

_numbers = itertools.count()

GOOD = """
from natsctl import Controller, Object, kv, primary

class App(Object, frozen=True):
    pass

class Apps(Controller):
    apps = primary(kv(App, bucket="apps"))

    async def sync_handler(self, key):
        pass

class Idle(Controller):
    apps = primary(kv(App, bucket="apps"))

class Homeless(Controller):
    async def sync_handler(self, key):
        pass

class Guest:
    def use(self, *, nats=None, kube=None):
        pass

    async def run(self):
        pass

    def stop(self):
        pass

NUMBER = 5
"""


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """A package of a name that no other test has, with modules of every sort."""
    name = f"shop{next(_numbers)}"
    folder = tmp_path / name
    folder.mkdir()
    (folder / "__init__.py").touch()
    (folder / "good.py").write_text(GOOD)
    (folder / "raises.py").write_text("def boom():\n    return 1 / 0\n\nboom()\n")
    (folder / "needs.py").write_text("import a_library_nobody_has\n")
    (folder / "typo.py").write_text("class Broken(:\n")
    (folder / "exits.py").write_text("raise SystemExit(0)\n")
    monkeypatch.syspath_prepend(tmp_path)
    return name


def refusal(path: str) -> str:
    with pytest.raises(UsageError) as caught:
        load(path)
    return str(caught.value)


def test_a_path_names_a_class(package: str) -> None:
    assert load(f"{package}.good:Apps").__name__ == "Apps"


@pytest.mark.parametrize("path", ["", "Apps", "mod:", ":Apps"])
def test_a_path_has_a_module_and_a_name(path: str) -> None:
    assert "write package.module:Name" in refusal(path)


def test_a_dot_in_place_of_the_colon_is_shown() -> None:
    assert refusal("shop.good.Apps").endswith("for example shop.good:Apps")


def test_a_missing_top_module_is_named() -> None:
    found = refusal("nosuchthing:Apps")
    assert "there is no module nosuchthing" in found
    assert "neither in the current directory nor installed" in found


def test_the_part_that_exists_is_told_and_the_nearest_name(package: str) -> None:
    found = refusal(f"{package}.god:Apps")
    assert f"{package} exists and has exits, good" in found
    assert found.endswith("did you mean good?")


def test_a_module_is_no_package(package: str) -> None:
    assert f"{package}.good is a module, not a package" in refusal(f"{package}.good.deep:Apps")


def test_a_missing_name_is_told_with_the_controllers_that_there_are(package: str) -> None:
    found = refusal(f"{package}.good:App5")
    assert f"{package}.good has no 'App5'" in found
    assert "its controllers are Apps, Idle, Homeless; did you mean Apps?" in found


@pytest.mark.parametrize("name", ["App", "NUMBER"])
def test_what_is_no_controller_is_told_as_such(package: str, name: str) -> None:
    found = refusal(f"{package}.good:{name}")
    assert f"{package}.good:{name} is no subclass of natsctl.Controller" in found
    assert "the controllers there are Apps, Idle, Homeless" in found


def test_a_controller_without_a_handler_is_refused(package: str) -> None:
    assert "has no sync_handler" in refusal(f"{package}.good:Idle")


def test_a_controller_without_a_primary_is_refused(package: str) -> None:
    assert "Homeless needs exactly one primary" in refusal(f"{package}.good:Homeless")


def test_what_a_module_raises_is_shown_from_its_own_first_line(package: str) -> None:
    found = refusal(f"{package}.raises:Apps")
    assert f"{package}.raises cannot be imported:" in found
    assert "ZeroDivisionError: division by zero" in found
    assert "return 1 / 0" in found
    assert "importlib" not in found
    assert "loader.py" not in found


def test_a_library_that_the_module_lacks_is_its_own_error(package: str) -> None:
    found = refusal(f"{package}.needs:Apps")
    assert "No module named 'a_library_nobody_has'" in found
    assert "import a_library_nobody_has" in found


def test_a_syntax_error_shows_the_line(package: str) -> None:
    found = refusal(f"{package}.typo:Apps")
    assert "class Broken(:" in found
    assert "SyntaxError" in found


def test_a_module_that_exits_ends_nobody(package: str) -> None:
    assert "SystemExit" in refusal(f"{package}.exits:Apps")


@pytest.mark.parametrize("name", ["Apps", "Guest"])
def test_whatever_can_be_run_can_be_meant_by_who_runs_it(package: str, name: str) -> None:
    assert load_runnable(f"{package}.good:{name}").__name__ == name


def test_only_a_controller_can_be_meant_by_who_needs_its_primaries(package: str) -> None:
    assert "no subclass of natsctl.Controller but another class" in refusal(f"{package}.good:Guest")


def test_what_cannot_be_run_is_told_with_what_can_be(package: str) -> None:
    with pytest.raises(UsageError) as caught:
        load_runnable(f"{package}.good:App")
    assert "nor has it use, run and stop, but it is another class" in str(caught.value)
    assert "the controllers there are Apps, Idle, Homeless, Guest" in str(caught.value)
