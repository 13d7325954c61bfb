"""Judge the tests by mutants: small faults, planted one at a time, that some test should notice.

    python tools/mutants.py             the stored sample: is each that was killed killed?
    python tools/mutants.py --draw 400  draw new mutants for those whose code is gone
    python tools/mutants.py MODULE ...  all mutants of some files or folders

The sample has the test that noticed each mutant, and the reason why each other may live. Such a
test runs first; only if it passes are others sought. Each verdict is stored at once, so a run that
is interrupted goes on where it was.

One process collects the tests and forks, one child per core. Each takes some of the modules, and
forks a child per mutant: it swaps the code of one function, and runs tests until one fails. To
find others, the children record which tests run which lines. No file of `natsctl` changes, and
files may be edited while the mutants run.
"""

import argparse
import ast
import fcntl
import gc
import json
import mmap
import os
import pickle
import random
import resource
import select
import signal
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from functools import partial
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
SAMPLE = ROOT / "tests" / "mutants.json"
PACKAGES = tuple(
    f"natsctl/{name}" for name in ("core", "controller", "jetstream", "managed", "watchers")
)
# Tests of behaviour come first: a mutant that a unit test kills is one that only unit tests notice.
TIERS = ("scenarios", "property", "simulation", "contract", "unit")
EXAMPLES = 20  # of each property; always the same
NOT_JUDGED = "not judged yet"
LANES = os.cpu_count() or 1
PARTS = 8 * LANES  # of the tests, so that no core idles for long
OUTPUT = os.dup(1)  # pytest and the children have others
MEMORY_MAX = 1 << 30  # bytes that a mutant may use more than the process that forks

Answer = dict[str, Any]
TestsOf = dict[str, dict[int, set[str]]]  # by file and line


class Named(NamedTuple):
    """Names a mutant in a way that survives moves of lines within its function."""

    module: str
    function: str
    mutant: str
    nth: int  # of the mutants in the function that read the same


class Result(NamedTuple):
    """The outcome of one mutant."""

    name: Named
    killer: str | None  # a test that fails or does not end, or an error


class Mutation:
    """A pytest plugin that runs the collected tests against mutants in place of once.

    *known* has the mutants to judge, with the test that noticed each, if any; None means all
    mutants of the *modules*, whose verdicts are not stored.
    """

    def __init__(
        self,
        modules: Sequence[Path],
        limit_s: float,
        known: dict[Named, str | None] | None,
    ) -> None:
        self._modules = modules
        self._known = known
        self._sources = {path: path.read_text() for path in modules}  # an edit does not matter
        self._limit_s = limit_s
        self._items: dict[str, pytest.Item] = {}
        self._times: dict[str, float] = {}
        self._functions: list[FunctionType] = []
        self._failed: Callable[[str], None] = lambda _: None
        self.results: list[Result] = []

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
        known = self._known or {}
        tests = sorted({test for test in known.values() if test in self._items})
        if tests:
            self._record(tests, traced=False)
            self._judge({name: test for name, test in known.items() if test in self._times}, None)
        judged = {result.name for result in self.results}
        left = None if self._known is None else {n: t for n, t in known.items() if n not in judged}
        if left is None or left:
            self._judge(left, self._record(list(self._items), traced=True))
        return True

    def _judge(self, wanted: dict[Named, str | None] | None, tests_of: TestsOf | None) -> None:
        """Judge the *wanted* mutants; without *tests_of*, only by the tests known for them."""

        def judge(path: Path, answer: Answer) -> None:
            answer["results"] = list(self._module(path, wanted, tests_of))

        answers = in_children([partial(judge, path) for path in self._modules])
        if not all("results" in answer for answer in answers):
            raise pytest.UsageError("a process that judges mutants ended")
        self.results += [result for answer in answers for result in answer["results"]]

    def pytest_runtest_makereport(self, item: pytest.Item, call: pytest.CallInfo[None]) -> None:
        """Notice a failure before pytest formats it, and after pytest's plugin for unittest."""
        if call.excinfo is not None and not call.excinfo.errisinstance(pytest.skip.Exception):
            self._failed(item.nodeid)

    def _record(self, names: Sequence[str], *, traced: bool) -> TestsOf:
        """Return the tests that run each line of each module; leave out tests that fail."""
        by_file: dict[str, list[str]] = {}
        for name in names:
            by_file.setdefault(name.partition("::")[0], []).append(name)
        files = list(by_file.values())
        parts = [[name for file in files[first::PARTS] for name in file] for first in range(PARTS)]
        tests_of: TestsOf = {str(path): {} for path in self._modules}
        self._times = {}
        for answer in in_children([partial(self._run_all, part, traced=traced) for part in parts]):
            if "lines" not in answer:
                raise pytest.UsageError("the tests end the process; run them with pytest")
            for name in sorted(answer["failed"]):
                _print(f"left out, because it fails without a mutant: {name}")
            times = answer["times"].items()
            self._times |= {name: time for name, time in times if name not in answer["failed"]}
            for path, lines in answer["lines"].items():
                for line, tests in lines.items():
                    tests_of[path].setdefault(line, set()).update(tests)
        _print(f"{len(self._times)} tests run in {sum(self._times.values()):.0f} s")
        return tests_of

    def _run_all(self, names: Sequence[str], answer: Answer, *, traced: bool) -> None:
        answer["failed"], answer["times"] = set(), {}
        self._failed = answer["failed"].add
        tracer = Tracer(self._modules)
        for name in names:
            tracer.test = name
            if traced:  # again for each test, because some test ends the tracing
                threading.settrace(tracer)
                sys.settrace(tracer)
            began = time.process_time()
            self._run(name, next_name=None)
            answer["times"][name] = time.process_time() - began
        sys.settrace(None)
        answer["lines"] = tracer.tests_of

    def _module(
        self, path: Path, wanted: dict[Named, str | None] | None, all_tests_of: TestsOf | None
    ) -> Iterator[Result]:
        """Run the wanted mutants of a module."""
        tests_of = {} if all_tests_of is None else all_tests_of[str(path)]
        tree = ast.parse(self._sources[path])  # only children change it
        killers: list[str] = []  # the last first
        breadths = Counter(name for names in tests_of.values() for name in names)
        for name, mutant in list(named(path, tree)):
            if wanted is not None and name not in wanted:
                continue
            if all_tests_of is None:
                kept = names = [test for test in ((wanted or {})[name],) if test is not None]
            else:
                names = self._chosen(path.stem, mutant, tests_of, killers, breadths)
                kept = self._within_limit(names)
            killer = self._killer(path, tree, mutant, kept) if kept else None
            if killer is None and all_tests_of is None:
                continue
            if killer in self._items:
                killers = [killer, *(name for name in killers[:20] if name != killer)]
            result = Result(name, killer)
            place = f"{name.module}:{mutant.statement.lineno}"
            # The limit leaves some of the tests out that run the changed line.
            _print(f"{killer or 'LIVES'} {place}: {mutant} ({len(kept)} of {len(names)})")
            if self._known is not None:
                store(result)
            yield result

    def _chosen(
        self,
        stem: str,
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
                TIERS.index(name.split("/")[1]) // (len(TIERS) - 1),  # unit tests last
                f"/test_{stem}.py::" not in name,  # the module's own suite first
                ranks.get(name, len(killers)),
                places[name],
                self._times[name],
            ),
        )

    def _within_limit(self, names: list[str]) -> list[str]:
        """Return as many of the tests of behaviour as the limit allows, and of the unit tests."""
        kept, total = list[str](), {True: 0.0, False: 0.0}
        for name in names:
            unit = name.startswith("tests/unit/")
            total[unit] += self._times[name]
            if total[unit] <= self._limit_s or total[unit] == self._times[name]:
                kept.append(name)
        return kept

    def _killer(self, path: Path, tree: ast.Module, mutant: Mutant, names: list[str]) -> str | None:
        """Return the first test that fails or does not end; None if all tests pass."""
        running = mmap.mmap(-1, mmap.PAGESIZE)  # has the test that runs

        def child(answer: Answer) -> None:
            def failed(name: str) -> NoReturn:
                answer["killer"] = name
                raise Killed

            size = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
            resource.setrlimit(resource.RLIMIT_AS, (size + MEMORY_MAX,) * 2)
            self._failed = failed
            self._swap(path, tree, mutant)
            for place, name in enumerate(names):
                running[:] = name.encode().ljust(mmap.PAGESIZE, b"\0")
                signal.setitimer(signal.ITIMER_PROF, 1 + 5 * self._times[name])
                self._run(name, next_name=names[place + 1] if place + 1 < len(names) else None)
            answer["killer"] = None

        waited_s = 120 + 30 * sum(self._times[name] for name in names)
        answer = in_child(child, timeout_s=waited_s)
        return answer["killer"] if "killer" in answer else running[:].rstrip(b"\0").decode()

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
    os.write(OUTPUT, f"{text}\n".encode())


def named(path: Path, tree: ast.Module) -> Iterator[tuple[Named, Mutant]]:
    """Return the mutants of a module with their names."""
    module, counts = str(path.relative_to(ROOT)), Counter[tuple[str, str]]()
    for mutant in mutants_of(tree):
        function, text = ".".join(enclosing(tree.body, mutant.statement.lineno)), str(mutant)
        yield Named(module, function, text, counts[function, text]), mutant
        counts[function, text] += 1


def enclosing(body: Sequence[ast.stmt], line: int) -> Iterator[str]:
    """Return the names of the classes and functions around a line, the outermost first."""
    for node in body:
        if isinstance(
            node, (ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
        ) and node.lineno <= line <= (node.end_lineno or line):
            yield node.name
            yield from enclosing(node.body, line)


def print_scores(results: list[Result]) -> None:
    """Print a row per module: its mutants, and those that no test noticed."""
    _print("| module | mutants | survived |\n|---|---|---|")
    counts = Counter(result.name.module for result in results)
    alive = Counter(result.name.module for result in results if result.killer is None)
    for module in counts:
        _print(f"| `{module.removeprefix('natsctl/')}` | {counts[module]} | {alive[module]} |")


@contextmanager
def sample() -> Iterator[dict[Named, dict[str, Any]]]:
    """Read the sample, and store it with the changes that are made in the context."""
    with SAMPLE.open("r+") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        rows = {Named(*(row[field] for field in Named._fields)): row for row in json.load(file)}
        yield rows
        file.seek(0)
        lines = ",\n".join(json.dumps(rows[name]) for name in sorted(rows))
        file.write(f"[\n{lines}\n]\n")
        file.truncate()


def store(result: Result) -> None:
    """Store the verdict on a mutant, but not that one lives which a test noticed before."""
    with sample() as rows:
        before = rows[result.name]
        if result.killer:
            rows[result.name] = {**result.name._asdict(), "killed_by": result.killer}
        elif before.get("why") == NOT_JUDGED:
            before["why"] = ""


def print_change(results: list[Result], known: dict[Named, str | None]) -> int:
    """Print the mutants that live and have no reason, and return how many."""
    judged = {result.name for result in results}
    _print(f"{len(judged)} mutants judged, {len(known.keys() - judged)} are of code that is gone")
    alive = [result.name for result in results if result.killer is None]
    for name in alive:
        again = " AGAIN" if known[name] else ""
        _print(f"LIVES{again}: {name.module} {name.function}: {name.mutant}")
    return len(alive)


def in_children(works: Sequence[Callable[[Answer], None]]) -> list[Answer]:
    """Do each of the *works* in a child, in as many at a time as there are cores."""
    with ThreadPoolExecutor(LANES) as threads:
        return list(threads.map(partial(in_child, timeout_s=6 * 3600.0), works))


def in_child(work: Callable[[Answer], None], *, timeout_s: float) -> Answer:
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
    read: Answer = {}
    with os.fdopen(readable, "rb") as pipe, suppress(EOFError, pickle.UnpicklingError):
        if not select.select([pipe], [], [], timeout_s)[0]:
            os.kill(pid, signal.SIGKILL)
        read = pickle.load(pipe)  # noqa: S301 - from the child; others may keep the pipe open
    os.waitpid(pid, 0)
    return read


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


def existing(modules: Sequence[Path]) -> list[Named]:
    """Return all mutants of the modules."""
    return [name for path in modules for name, _ in named(path, ast.parse(path.read_text()))]


def draw(modules: Sequence[Path], count: int, seed: int) -> None:
    """Drop the rows whose code is gone, and draw mutants by the seed until there are *count*.

    The row of a function that moved to another module, unchanged and without a namesake, stays.
    """
    names, moves = existing(modules), dict[tuple[Any, ...], list[Named]]()
    for name in names:
        moves.setdefault(name[1:], []).append(name)
    with sample() as rows:
        stored = dict(rows)
        rows.clear()
        rows |= {name: stored[name] for name in names if name in stored}
        for name in stored.keys() - rows.keys():
            if len(places := moves.get(name[1:], [])) == 1 and places[0] not in rows:
                rows[places[0]] = {**stored[name], "module": places[0].module}
        candidates = [name for name in names if name not in rows]
        more = max(0, count - len(rows))
        for name in random.Random(seed).sample(candidates, more):  # noqa: S311 - not a secret
            rows[name] = {**name._asdict(), "killed_by": None, "why": NOT_JUDGED}


def main() -> int:
    """Run the mutants that the arguments name."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("modules", nargs="*")
    parser.add_argument("--draw", type=int, metavar="N", help="complete the sample to N mutants")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--tests", nargs="*", default=[f"tests/{tier}" for tier in TIERS])
    parser.add_argument(
        "--limit-s", type=float, default=20.0, help="time per mutant and kind of test, traced"
    )
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
    modules = list(files(arguments.modules or PACKAGES))
    if arguments.draw:
        draw(modules, arguments.draw, arguments.seed)
        return 0
    known: dict[Named, str | None] | None = None
    if not arguments.modules:
        with sample() as rows:  # a mutant that lives for a reason is not judged again
            judged = [row for row in rows.items() if row[1].get("why") in {None, "", NOT_JUDGED}]
            known = {name: row["killed_by"] for name, row in judged}
    plugin = Mutation(modules, arguments.limit_s, known)
    code = int(pytest.main([*options, *arguments.tests], plugins=[plugin]))
    if known is None:
        print_scores(plugin.results)
        return code
    return code or int(print_change(plugin.results, known) > 0)


if __name__ == "__main__":
    sys.exit(main())
