"""The gate uses nothing beside the checkout, and the version is in one place."""

import re
from pathlib import Path

import natsctl

ROOT = Path(__file__).parents[2]


def test_the_gate_uses_nothing_beside_the_checkout() -> None:
    scripts = (".ci/run", "tools/kube-assets", "Makefile")
    assert [name for name in scripts if "shared/" in (ROOT / name).read_text()] == []


def test_the_version_is_written_in_one_place() -> None:
    version = re.compile(rf"(?<![\w.-]){re.escape(natsctl.__version__)}(?![\w.-])")
    places = ("pyproject.toml", "natsctl/__init__.py", "Dockerfile", "docker-compose.yml")
    assert [name for name in places if version.search((ROOT / name).read_text())] == [
        "natsctl/__init__.py"
    ]
