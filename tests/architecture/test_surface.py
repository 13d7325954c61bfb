"""The public surface: public names, imports, the README and the size of modules."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

import natsctl
from natsctl import errors

ROOT = Path(__file__).parents[2]


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


def test_an_unknown_name_is_an_attribute_error_and_a_renamed_one_warns() -> None:
    with pytest.raises(AttributeError, match="module 'natsctl' has no attribute 'Contoller'"):
        _ = natsctl.Contoller  # type: ignore[attr-defined]  # the name does not exist
    with pytest.warns(DeprecationWarning, match=r"natsctl\.Action .* use natsctl\.ChangeType"):
        renamed = natsctl.Action  # type: ignore[attr-defined]
    assert renamed is natsctl.ChangeType


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


def test_natsctl_loads_what_you_use_only() -> None:
    code = (
        "import sys, natsctl; print(*sys.modules); "
        "import natsctl.jetstream.store, nats; print(*sys.modules)"
    )
    ran = subprocess.run([sys.executable, "-c", code], check=True, cwd=ROOT, capture_output=True)
    first, with_nats = (set(line.split()) for line in ran.stdout.decode().splitlines())
    heavy = {"nats", "kubernetes", "aiohttp", "typer", "msgspec", "natsctl.controller"}
    assert (heavy & first, {"aiohttp", "multidict"} & with_nats) == (set(), set())


@pytest.mark.parametrize("target", ["demo", "test", "lint", "bench", "help", "test-long"])
def test_the_makefile_has_the_targets_of_the_readme(target: str) -> None:
    makefile = (ROOT / "Makefile").read_text()
    assert re.search(rf"^{target}:.*##", makefile, re.MULTILINE)
