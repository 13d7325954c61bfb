"""Run mutation tests in a copy of the repository, and print the survivors and the score.

    python tools/mutants.py [MODULE ...] [--tests PATH ...]

A module is a file or a folder; the default is all of natsctl/core and natsctl/controller. The tests
of a module are those at its place in tests/unit, unless `--tests` gives others. Only the mutants
that survive are printed in full.
"""

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).parents[1]
COPIED = ("natsctl", "controllers", "tests", "docs", "pyproject.toml", "README.md")
TIMEOUT_S = 120
DEFAULT = ("natsctl/core", "natsctl/controller")


def tests_of(module: str) -> str:
    """Return the unit tests that mirror a module: `tests/unit/core/sync/test_loop.py`."""
    path = Path("tests/unit") / Path(module).relative_to("natsctl")
    if path.suffix:
        path = path.with_name(f"test_{path.name}")
    return str(path if (ROOT / path).exists() else path.parent)


def main() -> None:
    """Run the mutants that the arguments name."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("modules", nargs="*", default=DEFAULT)
    parser.add_argument("--tests", nargs="*", default=())
    given = parser.parse_args()
    tests = " ".join(given.tests or map(tests_of, given.modules))
    with tempfile.TemporaryDirectory(prefix="natsctl-mutants-") as folder:
        for name in COPIED:
            copy = shutil.copytree if (ROOT / name).is_dir() else shutil.copy
            copy(ROOT / name, Path(folder) / name)
        Path(folder, "mutants.toml").write_text(
            "[cosmic-ray]\n"
            f"module-path = {list(given.modules)}\n"
            f"timeout = {TIMEOUT_S}\n"
            "excluded-modules = []\n"
            f"test-command = '{sys.executable} -m pytest -q -x -p no:cacheprovider {tests}'\n"
            "[cosmic-ray.distributor]\nname = 'local'\n"
        )
        run = Path(sys.executable).parent
        environ = {**os.environ, "PYTHONDONTWRITEBYTECODE": "1"}
        for command in (
            ("cosmic-ray", "init", "mutants.toml", "session.sqlite"),
            ("cosmic-ray", "exec", "mutants.toml", "session.sqlite"),
            ("cr-report", "--surviving-only", "--show-diff", "session.sqlite"),
            ("cr-rate", "session.sqlite"),
        ):
            subprocess.run([run / command[0], *command[1:]], cwd=folder, env=environ, check=True)


if __name__ == "__main__":
    main()
