"""The command line without a server: help, completion, the version and usage errors."""

import re
import subprocess
import sys

import pytest
from typer.main import get_command

from natsctl.cli.main import COMMANDS, GROUPS, app, run

ROOT = get_command(app)
WEBAPPS = "controllers.webapps:WebApps"


@pytest.mark.parametrize("name", COMMANDS)
def test_the_help_of_a_command_begins_with_its_line_of_the_overview(
    name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run([name, "--help"]) == 0
    paragraphs = capsys.readouterr().out.split("\n\n")
    assert " ".join(paragraphs[1].split()) == COMMANDS[name][1]


@pytest.mark.parametrize(
    "words",
    [
        *([name] for name in COMMANDS if name not in GROUPS),
        *(["gc", "plan"], ["gc", "apply"], ["external", "list"], ["external", "resolve"]),
    ],
)
def test_help_shows_examples_and_connection_options(
    words: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert run([*words, "--help"]) == 0
    shown = capsys.readouterr().out
    assert re.search(rf"Examples:\n    natsctl {' '.join(words)}\s", shown)
    assert ("NATSCTL_SERVER" in shown) is (
        words
        not in (
            *(["dev"], ["rbac"], ["hook-schema"]),
            *(["new"], ["example"], ["health"], ["help"]),
        )
    )
    with_cluster = (
        *(["run"], ["dev"], ["plan"], ["resync"], ["gc", "plan"], ["gc", "apply"], ["rbac"]),
        *(["config"], ["console"], ["doctor"], ["put"], ["apply"], ["edit"], ["delete"]),
    )
    assert ("--kubeconfig" in shown) is (words in with_cluster)


@pytest.mark.parametrize(
    ("words", "usage"),
    [
        (["put"], "[OPTIONS] BUCKET/KEY [VALUE]"),
        (["delete"], "[OPTIONS] BUCKET/KEY..."),
        (["resync"], "[OPTIONS] [BUCKET/KEY]..."),
        (["external", "resolve"], "[OPTIONS] KEY"),
    ],
)
def test_the_usage_line_shows_the_arguments(
    words: list[str], usage: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run([*words, "--help"]) == 0
    shown = capsys.readouterr().out
    assert f"Usage: natsctl {' '.join(words)} {usage}\n" in shown
    assert re.search(r"<(str|int|list)\b", shown) is None


@pytest.mark.parametrize("words", [[], ["-h"], ["help"], ["help", "help", "--help"]])
def test_every_help_flag_and_command_shows_the_usage(
    words: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(words) == 0
    assert "Usage: natsctl" in capsys.readouterr().out


@pytest.mark.parametrize("words", [["get"], ["gc"], ["gc", "apply"], ["run"]])
def test_help_gives_the_same_page_before_and_after_a_command(
    words: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert run([*words, "--help"]) == 0
    shown = capsys.readouterr().out
    for variant in ([*words, "-h"], ["help", *words]):
        assert run(variant) == 0
        assert capsys.readouterr().out == shown


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_show_completion_prints_the_script_of_the_detected_shell(
    shell: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("shellingham.detect_shell", lambda: (shell, f"/bin/{shell}"))
    with pytest.raises(SystemExit) as ended:
        run(["--show-completion"])
    assert ended.value.code == 0
    assert f"_NATSCTL_COMPLETE=complete_{shell}" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("typed", "completed"),
    [
        ("natsctl he", {"health", "help"}),
        ("natsctl help ex", {"example", "explain", "explain-kind", "external"}),
        ("natsctl gc ap", {"apply"}),
        ("natsctl get --outp", {"--output"}),
        ("natsctl get b k --output js", {"json"}),
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


def test_no_command_shows_the_overview(capsys: pytest.CaptureFixture[str]) -> None:
    assert run([]) == 0
    assert "Commands:" in capsys.readouterr().out


@pytest.mark.parametrize("name", GROUPS)
def test_a_group_without_a_command_shows_its_commands(
    name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run([name]) == 0
    shown = capsys.readouterr().out
    assert "Commands:" in shown
    assert run([name, "--help"]) == 0
    assert capsys.readouterr().out == shown


def test_version_prints_the_version_of_the_package(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["--version"]) == 0
    assert capsys.readouterr().out.startswith("natsctl 0.")


@pytest.mark.parametrize(
    ("typed", "message"),
    [
        (["gte"], "there is no command 'gte'; did you mean get?"),
        (["edit", "b"], "'b' alone names no object: write BUCKET/KEY, or BUCKET KEY"),
        (
            ["get", "b", "k", "-o", "xml"],
            "--output 'xml' must be table, wide, json, yaml, name, value, custom-columns=",
        ),
        (["doctor", "-o", "xml"], "--output 'xml' must be table or json (see natsctl doctor"),
        (["put", "b", "k", "x", "--revision", "0"], "--revision '0' must be 1 or more (see"),
        (["put", "b", "k", "x", "--revision", "x"], "--revision 'x' must be a whole number"),
        (["run", "-c", "a:B", "--port", "70000"], "--port '70000' must be 65535 or less"),
        (["resync", "--local", "--workers", "100000000"], "must be 10000 or less (see natsctl"),
        (["delete", "b", "k", "--wait-timeout", "x"], "--wait-timeout 'x' must be a number"),
        (["get", "b", "k", "--outptu", "x"], "no option --outptu; did you mean --output? (see"),
        (["get", "b", "k", "--frobnicate"], "there is no option --frobnicate (see natsctl get"),
        (["gc", "aply"], "there is no command aply; did you mean apply? (see natsctl gc --help)"),
        (["ls"], "there is no command 'ls': use natsctl get, or natsctl list BUCKET\n"),
        (["describe", "b/k"], "use natsctl explain BUCKET/KEY and natsctl tree BUCKET/KEY\n"),
        (["get", "-l", "a=b"], "--selector, --keys and --sort-by are for the objects of a bucket"),
        (["frobnicate"], "there is no command 'frobnicate'\n"),
        (["top"], "natsctl top is gone: use natsctl status, or natsctl console for a live view\n"),
        (["backup", "b", "-o", "f"], "natsctl backup is gone: use nats stream backup KV_BUCKET"),
        (["restore", "f"], "natsctl restore is gone: use nats stream restore FOLDER"),
        (["help", "gte"], "there is no command 'gte'; did you mean get?"),
        (["run", "-c", "./good.py:Good"], "controller './good.py:Good': write good:Good\n"),
        (["run", "-c", "good.py:Good"], "controller 'good.py:Good': write good:Good\n"),
        (["run", "-c", "sub/good.py"], "controller 'sub/good.py': write sub.good:Name\n"),
        (["run", "-c", "a:B", "--embedded", "-s", "x"], "but --server names another server"),
        (["run", "-c", "a:B", "--embedded", "--context", "x"], "but --context names another"),
        (["run", "-c", "a:B", "--shard", "--leader-elect"], "exclude each other"),
        (["run", "-c", "a:B", "--processes", "4"], "start several daemons with --shard (see"),
        (["list", "b", "-l", "a b"], "invalid label selector"),
        (["list", "b", "--keys", "a..b"], "is not a pattern of keys"),
        (["put", "b", "k"], "give one of VALUE, -f FILE and - for standard input"),
        (["put", "b", "k", "x", "-f", "y"], "give one of VALUE, -f FILE"),
        (["put", "b", "k", "x", "--create", "--revision", "3"], "exclude each other"),
        (["put", "b", "a..b", "x"], "key 'a..b'"),
        (["apply", "-f", "/dev/null"], "there is no document in /dev/null"),
        (["external", "resolve", "k"], "give --created or --not-created"),
        (["external", "resolve", "k", "--not-created", "--name", "x"], "--name needs --created"),
        (["delete", "b"], "write BUCKET/KEY, or BUCKET KEY; --all is for every key"),
        (["delete", "b", "k", "--all"], "every key of a bucket: give the bucket alone"),
        (["watch", "b", "k", "--keys", "a.*"], "exclude each other"),
        (["run", "-c", "nosuchthing"], "write package.module:Name"),
        (["run", "-c", "nosuchthing:X"], "there is no module nosuchthing"),
        (["run", "-c", "a:B", "--port", "1"], "--store-dir and --port need --embedded"),
        (["run", "-c", "a:B", "--no-kube", "--kubeconfig", "k"], "--no-kube excludes"),
        (["resync", "--local", "-c", WEBAPPS, "--no-kube"], "WebApps.configs is kept"),
        (["gc", "plan", "--local", "-c", WEBAPPS, "--no-kube"], "--no-kube forbids a connection"),
        (["rbac", "-c", "controllers.webapps:WebApps", "--namespace", "a"], "--service-account"),
        (["get", "b", "k", "--timeout", "never"], "must be a number of seconds"),
        (["health"], "give --listen HOST:PORT"),
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


def test_a_failed_connection_shows_no_secret(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert (
        run(["get", "b", "k", "-s", "nats://127.0.0.1:1", "--user", "u", "--password", "hush"]) == 1
    )
    assert "hush" not in "".join(capsys.readouterr())


def test_the_overview_loads_neither_nats_nor_yaml() -> None:
    code = (
        "import sys; from natsctl.cli.main import run; run(['--help']); "
        "heavy = {'nats', 'kubernetes', 'aiohttp', 'yaml', 'uvloop', 'rich'}; "
        "heavy |= {'watchfiles'}; "
        "heavy &= set(sys.modules); "
        "sys.exit(f'loaded: {heavy}' if heavy else 0)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize(
    "args",
    [["put", "shops", "a", '{"text": "\udcff"}'], ["pause", "shops/a", "--reason", "\udcff"]],
)
def test_an_argument_that_is_not_utf_8_is_refused_by_its_number(
    args: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(args) == 2
    assert "argument 4 is not UTF-8" in capsys.readouterr().err


def test_dev_names_the_extra_that_it_needs(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "watchfiles", None)
    assert run(["dev", "-c", "a:B"]) == 2
    assert "natsctl dev needs the extra reload: pip install" in capsys.readouterr().err
