"""The loader rejects a controller with wrong options, methods or constructor arguments."""

import itertools
from pathlib import Path

import pytest

from natsctl.daemon.loader import load_runnable, make
from natsctl.errors import UsageError

_numbers = itertools.count()

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


def load_error(module: str, folder: Path, base: str, *lines: str) -> str:
    """Load a subclass with these lines in its body, and return the error."""
    body = "".join(f"    {line}\n" for line in lines)
    (folder / f"{module}.py").write_text(f"{SOURCE}\nclass Mine({base}):\n{body}")
    path = f"{module}:Mine"
    with pytest.raises(UsageError) as caught:
        make(load_runnable(path), path)
    return str(caught.value)


@pytest.mark.parametrize("name", ["Apps", "Disks", "Watching"])
def test_a_valid_controller_is_created(module: str, tmp_path: Path, name: str) -> None:
    (tmp_path / f"{module}.py").write_text(SOURCE)
    path = f"{module}:{name}"
    assert type(make(load_runnable(path), path)).__name__ == name


@pytest.mark.parametrize(
    ("base", "line", "message"),
    [
        ("Apps", "workers = 0", "Mine: workers is 0, and must be a whole number from 1 to 10000"),
        (
            "Apps",
            "workers = '4'",
            "Mine: workers is '4', and must be a whole number from 1 to 10000",
        ),
        (
            "Apps",
            "workers = True",
            "Mine: workers is True, and must be a whole number from 1 to 10000",
        ),
        ("Apps", "resync_s = 0", "Mine: resync_s is 0, and must be a number of seconds above 0"),
        ("Apps", "sync_timeout_s = float('nan')", "sync_timeout_s is nan, and must be a number of"),
        (
            "Apps",
            "sync_timeout_s = None",
            "sync_timeout_s is None, and must be a number of seconds",
        ),
        ("Apps", "deletion_policy = 'keep'", "is 'keep', and must be 'delete' or 'orphan'"),
        ("Apps", "garbage = 30", "Mine: garbage is 30, and must be GarbageLimits(…)"),
        ("Apps", "retry = 3", "Mine: retry is 3, and must be a function of an error and the"),
        ("Apps", "kinds = 'Secret'", "Mine: kinds is 'Secret', and must be a list of kinds"),
        ("Apps", "resync = 5", "Mine: resync = 5 is not an option; did you mean resync_s?"),
        ("Apps", "worker = 5", "Mine: worker = 5 is not an option; did you mean workers?"),
        (
            "Apps",
            "sync_timout_s = 5",
            "sync_timout_s = 5 is not an option; did you mean sync_timeout_s",
        ),
        ("Disks", "workers = 0", "Mine: workers is 0, and must be a whole number from 1 to 10000"),
        (
            "Disks",
            "stop_timeout = 5",
            "stop_timeout = 5 is not an option; did you mean stop_timeout_s?",
        ),
        ("Watching", "options = {'workers': 0}", "mine: workers is 0, and must be a whole number"),
        ("Watching", "options = {'timeout_s': -1}", "mine: timeout_s is -1, and must be a number"),
        ("Watching", "options = {'worker': 1}", "unexpected keyword argument 'worker'"),
    ],
)
def test_the_error_of_a_wrong_option_has_its_name_and_its_type(
    module: str, tmp_path: Path, base: str, line: str, message: str
) -> None:
    assert message in load_error(module, tmp_path, base, line)


@pytest.mark.parametrize(
    ("lines", "message"),
    [
        (
            ("def sync_handler(self, key):", "    pass"),
            "Mine.sync_handler is not `async def`: write `async def sync_handler(self, key)`",
        ),
        (
            ("async def sync_handler(self):", "    pass"),
            "Mine.sync_handler takes other arguments: write `async def sync_handler(self, key)`",
        ),
        (
            ("async def sync_handler(self, key):", "    yield 5"),
            "Mine.sync_handler is not `async def`",
        ),
        (("def start(self):", "    pass"), "write `async def start(self)`"),
        (("def clean(self):", "    pass"), "write `async def clean(self)`"),
        (
            ("async def handle_secondary(self, change):", "    return []"),
            "Mine.handle_secondary is `async def`: write `def handle_secondary(self, change)`",
        ),
    ],
)
def test_the_error_of_a_wrong_method_has_the_expected_signature(
    module: str, tmp_path: Path, lines: tuple[str, ...], message: str
) -> None:
    assert message in load_error(module, tmp_path, "Apps", *lines)


@pytest.mark.parametrize("base", ["Apps", "Disks", "Watching"])
def test_the_error_of_required_constructor_arguments_names_them(
    module: str, tmp_path: Path, base: str
) -> None:
    lines = ("def __init__(self, region, *, zone, size=1):", "    pass")
    assert load_error(module, tmp_path, base, *lines) == (
        f"{module}:Mine needs constructor arguments (region, zone): give them defaults, or write a "
        "subclass without arguments"
    )


def test_a_constructor_exception_is_one_line_and_the_frames_of_the_user(
    module: str, tmp_path: Path
) -> None:
    lines = load_error(module, tmp_path, "Apps", "def __init__(self):", "    boom()").splitlines()
    file = tmp_path / f"{module}.py"
    assert lines[0] == f"{module}:Mine cannot be created: ValueError: no luck"
    assert [line.split(",")[0].strip() for line in lines if "File" in line] == [
        f'File "{file}"'
    ] * 2
    assert lines[-1].strip() == 'raise ValueError("no luck")'


def test_a_library_exception_shows_only_the_frames_of_the_user(module: str, tmp_path: Path) -> None:
    error = load_error(
        module, tmp_path, "Apps", "import json", "def __init__(self):", "    self.json.loads('{')"
    )
    assert "cannot be created: json.decoder.JSONDecodeError: Expecting property name" in error
    assert error.count("File") == 1
    assert "self.json.loads('{')" in error
