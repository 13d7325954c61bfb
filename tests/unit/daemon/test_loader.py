"""Errors for a wrong controller path name the mistake and suggest the right path."""

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
    """Create a package of a unique name with valid and broken modules."""
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


def load_error(path: str) -> str:
    with pytest.raises(UsageError) as caught:
        load(path)
    return str(caught.value)


def test_a_path_names_a_class(package: str) -> None:
    assert load(f"{package}.good:Apps").__name__ == "Apps"


@pytest.mark.parametrize("path", ["", "Apps", "mod:", ":Apps"])
def test_a_path_has_a_module_and_a_name(path: str) -> None:
    assert "write package.module:Name" in load_error(path)


def test_a_dot_instead_of_the_colon_is_corrected_in_the_error() -> None:
    assert load_error("shop.good.Apps").endswith("for example shop.good:Apps")


def test_the_error_names_a_missing_top_level_module() -> None:
    error = load_error("nosuchthing:Apps")
    assert "there is no module nosuchthing" in error
    assert "neither in the current directory nor installed" in error


def test_the_error_has_the_existing_part_and_the_nearest_name(package: str) -> None:
    error = load_error(f"{package}.god:Apps")
    assert f"{package} exists and has exits, good" in error
    assert error.endswith("did you mean good?")


def test_a_module_is_not_a_package(package: str) -> None:
    assert f"{package}.good is a module, not a package" in load_error(f"{package}.good.deep:Apps")


def test_the_error_of_a_missing_name_lists_the_controllers_of_the_module(package: str) -> None:
    error = load_error(f"{package}.good:App5")
    assert f"{package}.good has no 'App5'" in error
    assert "its controllers are Apps, Idle, Homeless; did you mean Apps?" in error


@pytest.mark.parametrize("name", ["App", "NUMBER"])
def test_an_object_that_is_no_controller_is_rejected(package: str, name: str) -> None:
    error = load_error(f"{package}.good:{name}")
    assert f"{package}.good:{name} is not a subclass of natsctl.Controller" in error
    assert "the controllers there are Apps, Idle, Homeless" in error


def test_a_controller_without_a_handler_is_rejected(package: str) -> None:
    assert "has no sync_handler" in load_error(f"{package}.good:Idle")


def test_a_controller_without_a_primary_is_rejected(package: str) -> None:
    assert "Homeless needs exactly one primary" in load_error(f"{package}.good:Homeless")


def test_an_import_error_shows_the_traceback_from_the_first_line_of_the_module(
    package: str,
) -> None:
    error = load_error(f"{package}.raises:Apps")
    assert f"{package}.raises cannot be imported:" in error
    assert "ZeroDivisionError: division by zero" in error
    assert "return 1 / 0" in error
    assert "importlib" not in error
    assert "loader.py" not in error


def test_a_missing_library_of_the_module_is_shown(package: str) -> None:
    error = load_error(f"{package}.needs:Apps")
    assert "No module named 'a_library_nobody_has'" in error
    assert "import a_library_nobody_has" in error


def test_a_syntax_error_shows_the_line(package: str) -> None:
    error = load_error(f"{package}.typo:Apps")
    assert "class Broken(:" in error
    assert "SyntaxError" in error


def test_a_module_that_exits_is_an_error(package: str) -> None:
    assert "SystemExit" in load_error(f"{package}.exits:Apps")


@pytest.mark.parametrize("name", ["Apps", "Guest"])
def test_load_runnable_accepts_controllers_and_other_runnables(package: str, name: str) -> None:
    assert load_runnable(f"{package}.good:{name}").__name__ == name


def test_load_rejects_a_runnable_that_is_no_controller(package: str) -> None:
    assert "is not a subclass of natsctl.Controller but another class" in load_error(
        f"{package}.good:Guest"
    )


def test_the_error_of_load_runnable_lists_the_runnables_of_the_module(package: str) -> None:
    with pytest.raises(UsageError) as caught:
        load_runnable(f"{package}.good:App")
    assert "and does not have use, run and stop: it is another class" in str(caught.value)
    assert "the controllers there are Apps, Idle, Homeless, Guest" in str(caught.value)
