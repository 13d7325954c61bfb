"""The workflows use pinned actions, and nothing beside the checkout."""

import re
from pathlib import Path

import natsctl

ROOT = Path(__file__).parents[2]
WORKFLOWS = ROOT / ".github" / "workflows"


def test_actions_are_pinned_by_hash_with_their_version_beside() -> None:
    uses = [
        line.strip()
        for workflow in WORKFLOWS.glob("*.yml")
        for line in workflow.read_text().splitlines()
        if "uses:" in line
    ]
    assert len(uses) > 5
    pinned = re.compile(r"- uses: [\w/-]+@[0-9a-f]{40} # v\d+\.\d+\.\d+")
    assert [line for line in uses if not pinned.fullmatch(line)] == []


def test_the_gate_uses_nothing_beside_the_checkout() -> None:
    scripts = (".ci/run", "tools/kube-assets", "Makefile")
    assert [name for name in scripts if "shared/" in (ROOT / name).read_text()] == []


def test_the_version_is_written_in_one_place() -> None:
    version = re.compile(rf"(?<![\w.-]){re.escape(natsctl.__version__)}(?![\w.-])")
    places = ("pyproject.toml", "natsctl/__init__.py", "Dockerfile", "docker-compose.yml")
    assert [name for name in places if version.search((ROOT / name).read_text())] == [
        "natsctl/__init__.py"
    ]
