"""Controllers are found in files, modules and packages, and made."""

import itertools
import tomllib
from pathlib import Path

import pytest

from natsctl import Controller
from natsctl.cli.command import load_controller
from natsctl.cli.main import run
from natsctl.daemon.loader import load, make
from natsctl.errors import UsageError

# ---- errors for a wrong controller path name the mistake and suggest the right path

_numbers = itertools.count()

GOOD = """
from natsctl import Controller, Object, kv, primary

class App(Object, frozen=True):
    pass

class Idle(Controller):
    apps = primary(kv(App, bucket="apps"))

class Guest:
    def use(self, *, nats=None, kube=None):
        pass

    async def run(self):
        pass

    def stop(self):
        pass
"""


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """Create a package of a unique name with valid and broken modules."""
    name = f"shop{next(_numbers)}"
    folder = tmp_path / name
    folder.mkdir()
    (folder / "__init__.py").touch()
    (folder / "good.py").write_text(GOOD)
    (folder / "needs.py").write_text("import a_library_nobody_has\n")
    (folder / "exits.py").write_text("raise SystemExit(0)\n")
    monkeypatch.syspath_prepend(tmp_path)
    return name


def load_error(path: str) -> str:
    with pytest.raises(UsageError) as caught:
        load(path)
    return str(caught.value)


def test_the_error_of_a_wrong_path_helps(package: str) -> None:
    error = load_error(f"{package}.god:Apps")
    assert f"{package} exists and has exits, good" in error
    assert error.endswith("did you mean good?")
    assert "has no sync_handler" in load_error(f"{package}.good:Idle")
    error = load_error(f"{package}.needs:Apps")
    assert "No module named 'a_library_nobody_has'" in error
    assert "import a_library_nobody_has" in error


def test_another_class_that_runs_is_not_taken_for_a_controller(package: str) -> None:
    path = f"{package}.good:Guest"
    assert load(path).__name__ == "Guest"
    with pytest.raises(UsageError, match=r"good:Guest is not a subclass of natsctl\.Contr"):
        load_controller(path)


# ---- the loader rejects a controller with wrong options, methods or constructor arguments


SOURCE = """
from natsctl import (
    Controller, InformerController, ManagedController, ManagedReconciler, Object, kv, primary,
    secondary,
)

class App(Object, frozen=True):
    pass

def boom():
    raise ValueError("no luck")

class Apps(Controller):
    apps = primary(kv(App, bucket="apps"))
    names = secondary(kv(App, bucket="names"))  # similar to the name of an option
    image = "nginx"
    retries = 3

    async def sync_handler(self, key):
        pass

class Disks(ManagedController):
    kind = kv(App, bucket="disks")

    def reconciler(self, managed):
        return ManagedReconciler(managed)

class Watching(InformerController):
    options = {}

    def __init__(self):
        super().__init__(**self.options)
"""


@pytest.fixture
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.syspath_prepend(tmp_path)
    return f"loaded{next(_numbers)}"


def make_error(module: str, folder: Path, base: str, *lines: str) -> str:
    """Load a subclass with these lines in its body, and return the error."""
    body = "".join(f"    {line}\n" for line in lines)
    (folder / f"{module}.py").write_text(f"{SOURCE}\nclass Mine({base}):\n{body}")
    path = f"{module}:Mine"
    with pytest.raises(UsageError) as caught:
        make(load(path), path)
    return str(caught.value)


NUMBER, SECONDS = "a whole number from 1 to 10000", "a number of seconds"
WRITE = "write `async def sync_handler(self, key)`"


@pytest.mark.parametrize(
    ("base", "line", "message"),
    [
        ("Apps", "workers = 0", f"Mine: workers is 0, and must be {NUMBER}"),
        ("Apps", "workers = '4'", f"Mine: workers is '4', and must be {NUMBER}"),
        ("Apps", "workers = True", f"Mine: workers is True, and must be {NUMBER}"),
        ("Apps", "resync_s = 0", f"Mine: resync_s is 0, and must be {SECONDS} above 0"),
        ("Apps", "sync_timeout_s = float('nan')", f"timeout_s is nan, and must be {SECONDS}"),
        ("Apps", "sync_timeout_s = None", f"sync_timeout_s is None, and must be {SECONDS}"),
        ("Apps", "deletion_policy = 'keep'", "is 'keep', and must be 'delete' or 'orphan'"),
        ("Apps", "garbage = 30", "Mine: garbage is 30, and must be GarbageLimits(…)"),
        ("Apps", "retry = 3", "Mine: retry is 3, and must be a function of an error and the"),
        ("Apps", "kinds = 'Secret'", "Mine: kinds is 'Secret', and must be a list of kinds"),
        ("Apps", "resync = 5", "Mine: resync = 5 is not an option; did you mean resync_s?"),
        ("Apps", "sync_timout_s = 5", "= 5 is not an option; did you mean sync_timeout_s"),
        ("Disks", "workers = 0", f"Mine: workers is 0, and must be {NUMBER}"),
        ("Disks", "stop_timeout = 5", "is not an option; did you mean stop_timeout_s?"),
        ("Watching", "options = {'workers': 0}", f"mine: workers is 0, and must be {NUMBER}"),
        ("Watching", "options = {'timeout_s': -1}", "mine: timeout_s is -1, and must be a number"),
        ("Watching", "options = {'worker': 1}", "unexpected keyword argument 'worker'"),
        ("Apps", "def sync_handler(self, key): pass", f"sync_handler is not `async def`: {WRITE}"),
        ("Apps", "async def sync_handler(self): pass", f"takes other arguments: {WRITE}"),
        ("Apps", "async def sync_handler(self, key): yield 5", "Mine.sync_handler is not `async"),
        ("Apps", "def start(self): pass", "write `async def start(self)`"),
        ("Apps", "def clean(self): pass", "write `async def clean(self)`"),
        (
            *("Apps", "async def handle_secondary(self, change): return []"),
            "Mine.handle_secondary is `async def`: write `def handle_secondary(self, change)`",
        ),
    ],
)
def test_the_error_of_a_wrong_option_or_method_has_what_is_expected(
    module: str, tmp_path: Path, base: str, line: str, message: str
) -> None:
    assert message in make_error(module, tmp_path, base, line)


@pytest.mark.parametrize("base", ["Apps", "Disks", "Watching"])
def test_the_error_of_required_constructor_arguments_names_them(
    module: str, tmp_path: Path, base: str
) -> None:
    lines = ("def __init__(self, region, *, zone, size=1):", "    pass")
    assert make_error(module, tmp_path, base, *lines) == (
        f"{module}:Mine needs constructor arguments (region, zone): give them defaults, or write a "
        "subclass without arguments"
    )


def test_a_constructor_exception_is_one_line_and_the_frames_of_the_user(
    module: str, tmp_path: Path
) -> None:
    lines = make_error(module, tmp_path, "Apps", "def __init__(self):", "    boom()").splitlines()
    file = tmp_path / f"{module}.py"
    assert lines[0] == f"{module}:Mine cannot be created: ValueError: no luck"
    assert [line.split(",")[0].strip() for line in lines if "File" in line] == [
        f'File "{file}"'
    ] * 2
    assert lines[-1].strip() == 'raise ValueError("no luck")'


# ---- `natsctl new --example` lists and prints the examples, and the wheel contains them

ROOT = Path(__file__).parents[3]
EXAMPLES = ["audit", "greetings", "hosts", "rollouts", "streams", "webapps"]


@pytest.mark.parametrize("name", EXAMPLES)
def test_a_printed_example_is_the_source_file_with_commands_for_the_current_folder(
    name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["new", "--example", name]) == 0
    printed = capsys.readouterr().out
    source = (ROOT / "controllers" / f"{name}.py").read_text()
    assert printed == source.replace(f"controllers.{name}:", f"{name}:")
    assert f" {name}:" in printed
    assert "controllers." not in printed


def test_a_printed_example_can_be_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["new", "--example", "greetings"]) == 0
    (tmp_path / "printed_greetings.py").write_text(capsys.readouterr().out)
    monkeypatch.syspath_prepend(tmp_path)
    assert issubclass(load("printed_greetings:Greetings"), Controller)


def test_the_wheel_has_every_example() -> None:
    build = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["hatch"]["build"]
    included = build["targets"]["wheel"]["force-include"]
    assert {f"controllers/{name}.py" for name in EXAMPLES} <= included.keys()
