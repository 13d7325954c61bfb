"""The command line without a server: help, completion, the version and usage errors."""

import re
import subprocess
import sys

import pytest

from natsctl.cli.main import COMMANDS, FORMER, GROUPS, run

NESTED = (["gc", "plan"], ["gc", "apply"], ["repair", "gc"], ["repair", "external", "resolve"])
SCREEN = 50  # lines
WEBAPPS = "controllers.webapps:WebApps"


@pytest.fixture(autouse=True)
def _wide(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")


def test_the_overview_shows_every_command_with_its_panel_on_two_screens(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert run([]) == 0
    shown = capsys.readouterr().out
    for name, (_, panel, summary) in COMMANDS.items():
        assert re.search(rf"│ {name}\s", shown), name
        assert f"─ {panel} ─" in shown
        assert " ".join(summary.split()[:5]) in shown
    assert shown.count("\n") <= 2 * SCREEN
    assert not [name for name in FORMER if re.search(rf"│ {name}\s", shown)]


def modules_of(program: str) -> set[str]:
    """Return the modules that a program has loaded at its end."""
    program += "; import sys; print(*sys.modules)"
    printed = subprocess.run([sys.executable, "-c", program], capture_output=True, check=True)
    return set(printed.stdout.decode().splitlines()[-1].split())


def test_commands_import_what_runs_controllers_only_to_run_them() -> None:
    names = ("get", "writing", "status", "acting", "gc", "run", "setup")
    loaded = modules_of(f"import {', '.join(f'natsctl.cli.{name}' for name in names)}")
    machine = {"controller.controller", "core.sync", "core.loop", "daemon.plan", "daemon.operator"}
    machine |= {"core.coordination", "core.informer"}
    assert "natsctl.cli.writing" in loaded
    assert not {f"natsctl.{name}" for name in machine} & loaded  # half a second of each command
    assert "opentelemetry" not in loaded


def test_the_overview_loads_no_heavy_module() -> None:
    loaded = modules_of("from natsctl.cli.main import run; run(['--help'])")
    heavy = {"nats", "kubernetes", "aiohttp", "yaml", "uvloop", "watchfiles", "rich", "asyncio"}
    assert not heavy & loaded


@pytest.mark.parametrize("words", [*([name] for name in COMMANDS if name != "options"), *NESTED])
def test_a_help_fits_25_lines_and_ends_with_examples(
    words: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert run([*words, "--help"]) == 0
    shown = capsys.readouterr().out
    assert shown.count("\n") <= 25
    assert "--server" not in shown
    if words[0] not in GROUPS or len(words) > 1:
        assert re.search(rf"Examples:\n(    .*\n)*?    .*natsctl {' '.join(words)}\b", shown)
    for variant in ([*words, "-h"], ["help", *words]):
        assert run(variant) == 0
        assert capsys.readouterr().out == shown


@pytest.mark.parametrize(
    "words",
    [
        ["-s", "nats://127.0.0.1:1", "get", "b"],
        ["-snats://127.0.0.1:1", "get", "b"],
        ["--server", "nats://127.0.0.1:1", "--timeout=1", "get", "b"],
        ["--server=nats://127.0.0.1:1", "--no-kube", "gc", "plan"],
        ["gc", "-s", "nats://127.0.0.1:1", "plan"],
        ["repair", "--timeout=1", "external", "--server=nats://127.0.0.1:1", "list"],
        ["get", "b", "-s", "nats://127.0.0.1:1"],
    ],
)
def test_the_options_of_the_connection_stand_before_or_after_the_command(
    words: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(words) == 1
    assert "nats://127.0.0.1:1" in capsys.readouterr().err


@pytest.mark.parametrize(
    "old", [name for name, new in FORMER.items() if new[0] != ":" and name != "dev"]
)
def test_an_old_name_still_works_and_names_the_new_one(
    old: str, capsys: pytest.CaptureFixture[str]
) -> None:
    new = FORMER[old]
    run([*old.split(), "--bad"])
    shown = capsys.readouterr().err
    assert shown.startswith(f"natsctl {old} is now natsctl {new}, and goes with the next version\n")
    assert run([*old.split(), "--help"]) == 0
    assert f"natsctl {new.split()[0]}" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("typed", "completed"),
    [
        ("natsctl he", {"health"}),
        ("natsctl gc ap", {"apply"}),
        ("natsctl get --outp", {"--output"}),
        ("natsctl get b k --output js", {"json", "jsonpath="}),
        ("natsctl frobnicate x", set()),
    ],
)
def test_a_shell_completes_commands_options_and_values(
    typed: str,
    completed: set[str],
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("_NATSCTL_COMPLETE", "complete_bash")
    monkeypatch.setenv("COMP_WORDS", typed)
    monkeypatch.setenv("COMP_CWORD", str(len(typed.split()) - 1))
    with pytest.raises(SystemExit) as ended:
        run([])
    assert ended.value.code == 0
    assert set(capsys.readouterr().out.split()) == completed


@pytest.mark.parametrize(
    ("typed", "message"),
    [
        (["gte"], "there is no command 'gte'; did you mean get?"),
        (["edit", "b"], "'b' alone names no object: write BUCKET/KEY, or BUCKET KEY"),
        (
            ["get", "b", "k", "-o", "xml"],
            "--output 'xml' must be table, wide, json, yaml, name, value, custom-columns=… or ",
        ),
        (["put", "b", "k", "x", "--revision", "0"], "should be greater than or equal to 1"),
        (["put", "b", "k", "x", "--revision", "x"], "'--revision': input should be a valid int"),
        (["run", "-c", "a:B", "--port", "70000"], "less than or equal to 65535 (see natsctl run"),
        (["delete", "b", "k", "--wait-timeout", "x"], "input should be a valid number"),
        (["get", "b", "k", "--outptu", "x"], "no option --outptu; did you mean --output? (see"),
        (["get", "b", "k", "--frobnicate"], "there is no option --frobnicate (see natsctl get"),
        (["gc", "aply"], "there is no command aply; did you mean apply? (see natsctl gc --help)"),
        (["ls"], "there is no command 'ls': use natsctl get\n"),
        (["explain", "b/k"], "b/k is an object: natsctl describe b/k shows its state"),
        (["get", "-l", "a=b"], "--selector, --keys and --sort-by are for the objects of a bucket"),
        (["frobnicate"], "there is no command 'frobnicate'\n"),
        (["top"], "there is no command 'top': use natsctl status -w\n"),
        (["backup", "b", "-o", "f"], "use nats stream backup KV_BUCKET"),
        (["restore", "f"], "use nats stream restore FOLDER"),
        (["help", "gte"], "there is no command 'gte'; did you mean get?"),
        (["run", "-c", "./good.py:Good"], "controller './good.py:Good': write good:Good\n"),
        (["run", "-c", "good.py:Good"], "controller 'good.py:Good': write good:Good\n"),
        (["run", "-c", "sub/good.py"], "controller 'sub/good.py': write sub.good:Name\n"),
        (["run", "-c", "a:B", "--embedded", "-s", "x"], "but --server names another server"),
        (["run", "-c", "a:B", "--embedded", "--context", "x"], "but --context names another"),
        (["run", "-c", "a:B", "--shard", "--leader-elect"], "exclude each other"),
        (["get", "b", "-l", "a b"], "invalid label selector"),
        (["get", "b", "--keys", "a..b"], "is not a pattern of keys"),
        (["put", "b", "k"], "give one of VALUE, -f FILE and - for standard input"),
        (["put", "b", "k", "x", "-f", "y"], "give one of VALUE, -f FILE"),
        (["put", "b", "k", "x", "--create", "--revision", "3"], "exclude each other"),
        (["put", "b", "a..b", "x"], "key 'a..b'"),
        (["apply", "-f", "/dev/null"], "there is no document in /dev/null"),
        (["repair", "external", "resolve", "b/k"], "give --created or --not-created"),
        (["repair", "external", "resolve", "b/k", "--not-created", "--name", "x"], "--name needs"),
        (["delete", "b"], "write BUCKET/KEY, or BUCKET KEY; --all is for every key"),
        (["delete", "b", "k", "--all"], "every key of a bucket: give the bucket alone"),
        (["get", "b", "k", "-w", "--keys", "a.*"], "are for the objects of a bucket"),
        (["get", "-w"], "--watch is for a bucket or an object"),
        (["wait", "b/k", "--for", "nothing"], "must be condition=TYPE, jsonpath={PATH}=VALUE"),
        (["wait", "b/k", "--for=delete", "--timeout=soon"], "write 90s, 30m, 2h or 1d12h"),
        (["label", "b/k"], "nothing is to be changed: give NAME=TEXT"),
        (["label", "b", "a=b"], "'b' alone names no object"),
        (["pause", "b"], "natsctl pause --all -c CONTROLLER is for a whole controller"),
        (["events", "--since", "soon"], "is not a time: write 2h, 03:30 or"),
        (["run", "-c", "nosuchthing"], "write package.module:Name"),
        (["run", "-c", "nosuchthing:X"], "there is no module nosuchthing"),
        (["run", "-c", "a:B", "--port", "1"], "--store-dir and --port need --embedded"),
        (["run", "-c", "a:B", "--no-kube", "--kubeconfig", "k"], "--no-kube excludes"),
        (["plan", "-c", WEBAPPS, "--no-kube"], "WebApps.configs is kept"),
        (["get", "b", "k", "--timeout", "never"], "must be a number of seconds"),
        (["health", "--listen", "everywhere"], "HOST:PORT"),
        (["get", "b", "k", "--user", "ann"], "without a password"),
    ],
)
def test_a_usage_error_is_one_line_and_exit_code_2(
    typed: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(typed) == 2
    output, error = capsys.readouterr()
    assert output == ""
    assert error.startswith("natsctl: error: ")
    assert message in error


def test_a_failed_connection_shows_no_secret(capsys: pytest.CaptureFixture[str]) -> None:
    secret = ["--user", "u", "--password", "hush"]
    assert run(["get", "b", "k", "-s", "nats://127.0.0.1:1", *secret]) == 1
    assert "hush" not in "".join(capsys.readouterr())


@pytest.mark.parametrize(
    "args",
    [["put", "shops", "a", '{"text": "\udcff"}'], ["pause", "shops/a", "--reason", "\udcff"]],
)
def test_an_argument_that_is_not_utf_8_is_refused_by_its_number(
    args: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(args) == 2
    assert "argument 4 is not UTF-8" in capsys.readouterr().err


def test_reload_names_the_extra_that_it_needs(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "watchfiles", None)
    assert run(["run", "--reload", "-c", "a:B"]) == 2
    assert "--reload needs the extra reload: pip install" in capsys.readouterr().err
