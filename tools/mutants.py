"""Run mutation tests, and print the survivors and the score of each module.

    python tools/mutants.py [MODULE ...] [--tests PATH ...] [--limit-s 3]

A module is a file or a folder; the default is all of natsctl/core and natsctl/controller. One
process collects the tests and forks. The first child records which tests run which lines. Each
further child swaps the code of one function, and runs the tests that run the changed line until one
fails. No file changes, and files may be edited while the mutants run.
"""

import argparse
import ast
import gc
import os
import pickle
import resource
import select
import signal
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from types import CodeType, FrameType, FunctionType
from typing import Any, NamedTuple, NoReturn

import pytest
from hypothesis import HealthCheck, Phase, settings
from mutations import (  # type: ignore[import-not-found]  # beside this script
    Mutant,
    mutants_of,
)

ROOT = Path(__file__).parents[1]
MODULES = ("natsctl/core", "natsctl/controller")
TESTS = (
    *(f"tests/unit/{name}" for name in ("core", "controller", "managed", "watchers", "resource")),
    "tests/unit/dynamic",
    "tests/property",
    "tests/scenarios",
)
EXAMPLES = 20  # of each property; always the same
MEMORY_MAX = 1 << 30  # bytes that a mutant may use more than the process that forks

Answer = dict[str, Any]
TestsOf = dict[str, dict[int, set[str]]]  # by file and line


class Result(NamedTuple):
    """The outcome of one mutant."""

    mutant: Mutant
    killed: bool
    tests: int  # tests that run the changed line
    ran: int  # the limit leaves the others out


class Mutation:
    """A pytest plugin that runs the collected tests against mutants in place of once."""

    def __init__(self, modules: Sequence[Path], limit_s: float) -> None:
        self._modules = modules
        self._sources = {path: path.read_text() for path in modules}  # an edit does not matter
        self._limit_s = limit_s
        self._items: dict[str, pytest.Item] = {}
        self._times: dict[str, float] = {}
        self._functions: list[FunctionType] = []
        self._failed: Callable[[str], None] = lambda _: None

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtestloop(self, session: pytest.Session) -> bool:
        """Run the mutants of each module, and print a table of scores."""
        if session.testsfailed:
            raise pytest.UsageError("the tests cannot be collected")
        gc.unfreeze()
        files = {str(path) for path in self._modules}
        self._functions = [
            function
            for function in gc.get_objects()
            if isinstance(function, FunctionType) and function.__code__.co_filename in files
        ]
        gc.freeze()
        self._items = {item.nodeid: item for item in session.items}
        tests_of = self._record()
        rows = []
        for path in self._modules:
            results = list(self._module(path, tests_of[str(path)]))
            killed = sum(result.killed for result in results)
            rows.append((str(path.relative_to(ROOT)), len(results), len(results) - killed))
            _print(row(*rows[-1]))
        _print("| module | mutants | survived | score |\n|---|---|---|---|")
        for name, mutants, survived in rows:
            _print(row(name, mutants, survived))
        _print(row("all", sum(row[1] for row in rows), sum(row[2] for row in rows)))
        return True

    def pytest_runtest_makereport(self, item: pytest.Item, call: pytest.CallInfo[None]) -> None:
        """Notice a failure before pytest formats it, and after pytest's plugin for unittest."""
        if call.excinfo is not None and not call.excinfo.errisinstance(pytest.skip.Exception):
            self._failed(item.nodeid)

    def _record(self) -> TestsOf:
        """Return the tests that run each line of each module; leave out tests that fail."""
        recorded = in_child(lambda answer: self._run_all(answer, traced=True))
        times = in_child(lambda answer: self._run_all(answer, traced=False))
        if "lines" not in recorded or "times" not in times:
            raise pytest.UsageError("the tests end the process; run them with pytest")
        failed = recorded["failed"] | times["failed"]
        for name in sorted(failed):
            _print(f"left out, because it fails without a mutant: {name}")
        self._times = {
            name: seconds for name, seconds in times["times"].items() if name not in failed
        }
        _print(f"{len(self._times)} tests run in {sum(self._times.values()):.0f} s")
        tests_of: TestsOf = recorded["lines"]
        return tests_of

    def _run_all(self, answer: Answer, *, traced: bool) -> None:
        answer["failed"], answer["times"] = set(), {}
        self._failed = answer["failed"].add
        tracer = Tracer(self._modules)
        if traced:
            threading.settrace(tracer)
            sys.settrace(tracer)
        for name in self._items:
            tracer.test = name
            began = time.process_time()
            self._run(name, next_name=None)
            answer["times"][name] = time.process_time() - began
        sys.settrace(None)
        answer["lines"] = tracer.tests_of

    def _module(self, path: Path, tests_of: dict[int, set[str]]) -> Iterator[Result]:
        """Run all mutants of a module."""
        tree = ast.parse(self._sources[path])  # only children change it
        killers: list[str] = []  # the last first
        breadths = Counter(name for names in tests_of.values() for name in names)
        for mutant in list(mutants_of(tree)):
            names = self._chosen(path, mutant, tests_of, killers, breadths)
            kept = self._within_limit(names)
            killer = self._killer(path, tree, mutant, kept) if kept else None
            if killer in self._items:
                killers = [killer, *(name for name in killers[:20] if name != killer)]
            result = Result(mutant, killer is not None, len(names), len(kept))
            if not result.killed:
                place = f"{path.relative_to(ROOT)}:{mutant.statement.lineno}"
                _print(f"{place}: {mutant} ({result.ran} of {result.tests} tests)")
            yield result

    def _chosen(
        self,
        path: Path,
        mutant: Mutant,
        tests_of: dict[int, set[str]],
        killers: list[str],
        breadths: Counter[str],
    ) -> list[str]:
        """Return the tests that run the changed line; those that are likely to fail are first.

        *breadths* has the number of lines of the module that each test runs.
        """
        names: set[str] = set()
        for lines in mutant.lines():
            names = {name for line in lines for name in tests_of.get(line, ())} & set(self._times)
            if names:
                break
        mirrored = f"tests/unit/{path.parent.relative_to(ROOT / 'natsctl')}/test_{path.name}"
        ranks = {name: rank for rank, name in enumerate(killers)}
        in_file: Counter[str] = Counter()
        places: dict[str, int] = {}  # of each test among those of its file, the broadest first
        for name in sorted(names, key=lambda name: (-breadths[name], self._times[name])):
            file = name.partition("::")[0]
            places[name] = in_file[file]
            in_file[file] += 1
        return sorted(
            names,
            key=lambda name: (
                ranks.get(name, len(killers)),
                not name.startswith(mirrored),
                places[name],
                self._times[name],
            ),
        )

    def _within_limit(self, names: list[str]) -> list[str]:
        kept, total = list[str](), 0.0
        for name in names:
            total += self._times[name]
            if kept and total > self._limit_s:
                break
            kept.append(name)
        return kept

    def _killer(self, path: Path, tree: ast.Module, mutant: Mutant, names: list[str]) -> str | None:
        """Return the first test that fails, or a reason; None if all tests pass."""

        def child(answer: Answer) -> None:
            def failed(name: str) -> NoReturn:
                answer["killer"] = name
                raise Killed

            size = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
            resource.setrlimit(resource.RLIMIT_AS, (size + MEMORY_MAX,) * 2)
            self._failed = failed
            self._swap(path, tree, mutant)
            for place, name in enumerate(names):
                signal.setitimer(signal.ITIMER_PROF, 1 + 5 * self._times[name])
                self._run(name, next_name=names[place + 1] if place + 1 < len(names) else None)
            answer["killer"] = None

        waited_s = 120 + 30 * sum(self._times[name] for name in names)
        killer: str | None = in_child(child, timeout_s=waited_s).get("killer", "a limit")
        return killer

    def _swap(self, path: Path, tree: ast.Module, mutant: Mutant) -> None:
        """Give the functions of the module the code of the mutant."""
        part = ast.Module(list(around(tree.body, mutant.statement)), [])
        mutant.apply()
        codes = dict(codes_in(compile(part, str(path), "exec", dont_inherit=True)))
        for function in self._functions:
            if function.__code__.co_filename == str(path):
                code = codes.get(place_of(function.__code__))
                if code is not None:
                    function.__code__ = code  # an error counts as killed

    def _run(self, name: str, *, next_name: str | None) -> None:
        item = self._items[name]
        following = self._items[next_name] if next_name is not None else None
        item.ihook.pytest_runtest_protocol(item=item, nextitem=following)


class Tracer:
    """Records which tests run which lines of the modules.

    With Python 3.11, coverage.py misses the lines of a coroutine that continues after an exception
    in the coroutine that it awaits.
    """

    def __init__(self, modules: Sequence[Path]) -> None:
        self.tests_of: TestsOf = {str(path): {} for path in modules}
        self.test = ""

    def __call__(self, frame: FrameType, _event: str, _argument: object) -> "Tracer | None":
        """Record the line, and trace the frame if its module is one of these."""
        lines = self.tests_of.get(frame.f_code.co_filename)
        if lines is None:
            return None
        lines.setdefault(frame.f_lineno, set()).add(self.test)
        return self


class Killed(BaseException):
    """A test has failed: the child ends."""


def _print(text: str) -> None:
    print(text, file=sys.__stdout__, flush=True)


def row(name: str, mutants: int, survived: int) -> str:
    """Return a row of the table."""
    score = (mutants - survived) / mutants if mutants else 1.0
    return f"| `{name.removeprefix('natsctl/')}` | {mutants} | {survived} | {score:.0%} |"


def in_child(work: Callable[[Answer], None], *, timeout_s: float = 3600.0) -> Answer:
    """Run *work* in a fork of this process, and return the answer, empty if it was killed."""
    readable, writable = os.pipe()
    pid = os.fork()
    if pid == 0:
        os.close(readable)
        null = os.open(os.devnull, os.O_WRONLY)
        for descriptor in (1, 2):
            os.dup2(null, descriptor)
        answer: Answer = {}
        try:
            work(answer)
        except Killed:
            pass
        except BaseException as error:  # noqa: BLE001 - a child ends only here
            answer.setdefault("killer", repr(error))
        signal.setitimer(signal.ITIMER_PROF, 0)
        with os.fdopen(writable, "wb") as pipe:
            pickle.dump(answer, pipe)
        os._exit(0)
    os.close(writable)
    with os.fdopen(readable, "rb") as pipe:
        if not select.select([pipe], [], [], timeout_s)[0]:
            os.kill(pid, signal.SIGKILL)
        written = pipe.read()
    os.waitpid(pid, 0)
    return pickle.loads(written) if written else {}  # noqa: S301 - from the child


def around(body: Sequence[ast.stmt], inner: Any) -> Iterator[ast.stmt]:
    """Return the function that contains the *inner* node, within its classes."""
    for node in body:
        last = node.end_lineno if node.end_lineno is not None else node.lineno
        if node.lineno <= inner.lineno <= last:
            if isinstance(node, ast.ClassDef):
                node.body = list(around(node.body, inner))
            yield node


def place_of(code: CodeType) -> tuple[str, int]:
    """Return a function's name and line, which a mutant does not change."""
    return code.co_qualname, code.co_firstlineno


def codes_in(code: CodeType) -> Iterator[tuple[tuple[str, int], CodeType]]:
    """Return the code of each function in a module, with its place."""
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield place_of(constant), constant
            yield from codes_in(constant)


def files(modules: Sequence[str]) -> Iterator[Path]:
    """Return the files of the modules and folders."""
    for module in modules:
        path = ROOT / module
        if not path.exists():
            sys.exit(f"there is no {module}")
        yield from sorted(path.rglob("*.py")) if path.is_dir() else (path,)


def main() -> int:
    """Run the mutants that the arguments name."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("modules", nargs="*", default=MODULES)
    parser.add_argument("--tests", nargs="*", default=TESTS)
    parser.add_argument("--limit-s", type=float, default=3.0, help="processor time per mutant")
    arguments = parser.parse_args()
    os.chdir(ROOT)
    settings.register_profile(
        "mutants",
        max_examples=EXAMPLES,
        deadline=None,
        derandomize=True,
        database=None,
        phases=(Phase.explicit, Phase.generate),  # one failing example is enough
        suppress_health_check=list(HealthCheck),
    )
    options: tuple[str, ...] = ("-q", "-s", "-p", "no:cacheprovider", "-p", "no:faulthandler")
    options += ("--hypothesis-profile=mutants", "-m", "not long and not server")
    options += ("-W", "ignore::pytest.PytestAssertRewriteWarning")  # of hypothesis
    plugin = Mutation(list(files(arguments.modules)), arguments.limit_s)
    return int(pytest.main([*options, *arguments.tests], plugins=[plugin]))


if __name__ == "__main__":
    sys.exit(main())
