"""The public surface: public names, imports, the README and the size of modules."""

import asyncio
import re
import subprocess
import sys
from pathlib import Path

import pytest

import natsctl
from natsctl import errors
from natsctl.testing import VirtualTimeLoop

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text()


def test_every_public_name_exists() -> None:
    assert [name for name in natsctl.__all__ if getattr(natsctl, name, None) is None] == []  # type: ignore[attr-defined]


def test_every_error_is_public() -> None:
    names = {name for name, value in vars(errors).items() if isinstance(value, type)}
    assert names - set(natsctl.__all__) == set()  # type: ignore[attr-defined]


def test_the_public_names_are_sorted_and_unique() -> None:
    assert natsctl.__all__ == sorted(set(natsctl.__all__))  # type: ignore[attr-defined]


def test_a_star_import_gives_every_public_name() -> None:
    namespace: dict[str, object] = {}
    exec("from natsctl import *", namespace)
    assert set(natsctl.__all__) <= namespace.keys() & set(dir(natsctl))  # type: ignore[attr-defined]


def test_an_unknown_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="module 'natsctl' has no attribute 'Contoller'"):
        _ = natsctl.Contoller  # type: ignore[attr-defined]  # the name does not exist


def test_no_other_name_is_public() -> None:
    surfaces = {"controller", "dynamic", "managed", "resource", "watchers"}
    parts = {
        *("cli", "console", "core", "daemon", "errors", "jetstream", "kubernetes"),
        *("model", "public_names", "slices", "split_dict", "start_process", "telemetry"),
        *("operate", "testing", "time_limit"),
    }
    modules = parts | surfaces
    public = {
        name for name in vars(natsctl) if not name.startswith(("_", "@"))
    }  # pytest adds names with @
    assert public - set(natsctl.__all__) - modules == {"TYPE_CHECKING", "load_on_first_use"}  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ("package", "name"), [("natsctl.jetstream.store", "kv"), ("natsctl.kubernetes", "kube")]
)
def test_a_kind_function_stays_callable_after_an_import_of_its_package(
    package: str, name: str
) -> None:
    code = f"import {package}, natsctl; from natsctl import {name}; assert callable({name})"
    subprocess.run([sys.executable, "-c", code], check=True, cwd=ROOT)


@pytest.mark.parametrize(
    "package", ["nats", "kubernetes", "aiohttp", "typer", "msgspec", "natsctl.controller"]
)
def test_importing_natsctl_does_not_load_the_package(package: str) -> None:
    code = f"import sys, natsctl; assert {package!r} not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True, cwd=ROOT)


def test_the_stores_of_nats_do_not_load_aiohttp() -> None:
    code = (
        "import sys, natsctl.jetstream.store, nats; "
        "assert not {'aiohttp', 'multidict'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True, cwd=ROOT)


def test_the_readme_controller_passes_the_readme_test() -> None:
    namespace: dict[str, object] = {}
    for block in re.findall(r"```python[^\n]*\n(.*?)```", README, re.DOTALL):
        exec(compile(block, "README.md", "exec"), namespace)
    test = namespace["test_a_greeting_becomes_a_route"]
    with asyncio.Runner(loop_factory=VirtualTimeLoop) as runner:
        runner.run(test())  # type: ignore[operator]  # the test of the README


@pytest.mark.parametrize("target", ["demo", "test", "lint", "bench", "help", "test-long"])
def test_the_makefile_has_the_targets_of_the_readme(target: str) -> None:
    makefile = (ROOT / "Makefile").read_text()
    assert re.search(rf"^{target}:.*##", makefile, re.MULTILINE)
