"""Settings: where they come from, their errors, and the page that lists them."""

import json
import re
import tomllib
from pathlib import Path

import msgspec
import pytest

from natsctl import KUMORI, Controller, NatsOptions, OwnerNames
from natsctl.daemon.settings.settings import (
    BY_NAME,
    FIELDS,
    SETTINGS,
    ControllerSettings,
    Effective,
    KubeSettings,
    Setting,
    Settings,
    load_settings,
)
from natsctl.errors import UsageError

# ---- flags override the environment, which overrides the settings file

by_name = pytest.mark.parametrize("setting", SETTINGS, ids=lambda setting: setting.name)


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def load_file(text: str) -> Effective:
    """Load a settings file with this text from the current folder."""
    Path("natsctl.toml").write_text(text)
    return load_settings({}, {})


def test_a_flag_overrides_a_variable_and_a_variable_overrides_the_file() -> None:
    Path("natsctl.toml").write_text("[controllers]\nworkers = 1\nresync_s = 1\nstop_timeout_s = 1")
    environ = {"NATSCTL_WORKERS": "2", "NATSCTL_RESYNC": "2"}
    effective = load_settings({"workers": "3"}, environ)
    assert effective.settings.controllers == ControllerSettings(
        workers=3, resync_s=2, stop_timeout_s=1
    )
    assert effective.sources == {
        "controllers.workers": "--workers",
        "controllers.resync_s": "NATSCTL_RESYNC",
        "controllers.stop_timeout_s": "natsctl.toml",
    }


def test_every_field_has_a_setting() -> None:
    assert set(FIELDS) <= set(BY_NAME)


@by_name
def test_the_example_of_a_variable_is_valid(setting: Setting) -> None:
    for variable in setting.variables:
        password = {"NATSCTL_PASSWORD": "p"} if variable == "NATS_USER" else {}
        effective = load_settings({}, {variable: setting.typed(), **password})
        assert {effective.source(field) for field in setting.fills} == {variable}


@by_name
def test_the_example_of_a_file_is_valid_and_equals_that_of_the_variable(setting: Setting) -> None:
    effective = load_file(f"\n[{setting.section}]\n{setting.line()}\n")
    typed = load_settings({}, {setting.variables[0]: setting.typed()}, config="/dev/null")
    assert {effective.source(field) for field in setting.fills} == {"natsctl.toml"}
    assert effective.settings == typed.settings


@pytest.mark.parametrize(
    "name", [setting.name for setting in SETTINGS if setting.form.description[:5] != "a tex"]
)
def test_the_error_of_a_wrong_value_has_its_setting_source_and_an_example(name: str) -> None:
    setting = BY_NAME[name]
    with pytest.raises(UsageError) as caught:
        load_file(f"# wrong\n[{setting.section}]\n{setting.field} = [[]]")
    message = str(caught.value)
    assert message.startswith(f"{name} in natsctl.toml: ")
    assert message.endswith(f"; write {setting.line()}")


@pytest.mark.parametrize(
    ("typed", "text", "setting", "wanted"),
    [
        ("--workers 4", "many", "controllers.workers", "a whole number from 1 to 10000"),
        ("NATSCTL_WORKERS=4", "0", "controllers.workers", "a whole number from 1 to 10000"),
        ("--workers 4", "100000000", "controllers.workers", "a whole number from 1 to 10000"),
        (
            *("--resync 60", "1e300", "controllers.resync_s"),
            "a number of seconds above 0, at most 1e9",
        ),
        (
            *("NATSCTL_OWNER_DOMAIN=example.com", "Not/One", "controllers.owner_domain"),
            "a domain in lower case",
        ),
        ("--lease-ttl 15", "0.2", "controllers.lease_ttl_s", "at least 1 second"),
        ("--log-format json", "xml", "logs.format", "text or json"),
        ("NATSCTL_TLS_FIRST=true", "maybe", "nats.tls_first", "true or false"),
    ],
)
def test_the_error_of_a_wrong_flag_or_variable_is_one_line(
    typed: str, text: str, setting: str, wanted: str
) -> None:
    name = re.split("[ =]", typed)[0]
    environ = {name: text} if name.startswith("NATSCTL") else {}
    flags = {} if environ else {name.removeprefix("--").replace("-", "_"): text}
    with pytest.raises(UsageError) as caught:
        load_settings(flags, environ)
    assert str(caught.value) == f"{setting} in {name}: {text!r} must be {wanted}; write {typed}"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            "[controllers]\n\nworkrs = 1",
            "there is no setting controllers.workrs; did you mean controllers.workers?",
        ),
        (
            "[nats]\nworkers = 1",
            "there is no setting nats.workers; did you mean workers in [controllers]?",
        ),
        ("[nats]\nfoo = 1", "there is no setting nats.foo: the sections are [nats], [kube], "),
        ("\n[controler]", "there is no section [controler]; did you mean contr"),
        ("creds = 'a'", "creds is not in a section; did you mean creds in [nats]?"),
        ("[nats]\nuser = ann", "not valid TOML: Invalid value (at line 2"),
        ("[logs]\nlevel = 'loud'", "logs.level in natsctl.toml: 'loud' must be a level (debug, "),
        ("[nats]\nname = 5", "nats.name in natsctl.toml: 5 must be a text of at least one char"),
        ("[controllers]\nworkers = '4'", "controllers.workers in natsctl.toml: '4' must be"),
        ("[kube]\ntimeout_s = true", "kube.timeout_s in natsctl.toml: True must be a number"),
        ("[nats.creds]\nfile = 'x'", "nats.creds in natsctl.toml: a dict must be the path"),
    ],
)
def test_the_error_of_a_wrong_file_names_the_setting(text: str, message: str) -> None:
    with pytest.raises(UsageError, match=r"natsctl\.toml") as caught:
        load_file(text)
    assert message in str(caught.value)


@pytest.mark.parametrize(
    "text", ["[nats]\ntoken = 12345", "[nats]\nservers = [54321]", "[nats]\npassword = tok12345"]
)
def test_a_wrong_value_that_can_be_secret_is_not_shown(text: str) -> None:
    with pytest.raises(UsageError) as caught:
        load_file(text)
    assert "natsctl.toml" in str(caught.value)
    assert "12345" not in str(caught.value)
    assert "54321" not in str(caught.value)
    assert caught.value.__cause__ is None


def test_the_file_is_named_by_flag_then_variable_then_the_current_folder() -> None:
    for name in ("natsctl", "flag", "variable"):
        Path(f"{name}.toml").write_text(f"[nats]\nuser = '{name}'")
    environ = {"NATSCTL_CONFIG": "variable.toml"}
    loaded = [
        load_settings({}, environ, config="flag.toml"),
        load_settings({}, environ),
        load_settings({}, {"NATSCTL_CONFIG": ""}),
    ]
    assert [effective.settings.nats.user for effective in loaded] == ["flag", "variable", "natsctl"]
    assert [str(effective.file) for effective in loaded] == [
        "flag.toml",
        "variable.toml",
        "natsctl.toml",
    ]


def test_a_value_overrides_that_of_the_context_also_if_it_is_the_default(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(folder))
    (folder / "nats" / "context").mkdir(parents=True)
    stored = {"url": "nats://hub", "tls_first": True, "inbox_prefix": "ann", "user": "eve"}
    (folder / "nats" / "context" / "hub.json").write_text(json.dumps(stored))
    settings = "[nats]\ncontext = 'hub'\ntls_first = false\ninbox_prefix = '_INBOX'\nuser = 'ann'"
    effective = load_file(settings)
    complete = effective.with_context()
    assert effective.nats == NatsOptions(servers=("nats://hub",), user="ann")
    assert complete.source("nats.servers") == "context hub"
    assert complete.source("nats.tls_first") == complete.source("nats.user") == "natsctl.toml"
    assert complete.settings.nats.password is None  # not that of another user


def test_a_file_above_the_size_limit_is_rejected() -> None:
    with pytest.raises(UsageError, match="longer than 65536 bytes"):
        load_file("#" * 65_537)


@pytest.mark.parametrize("value", ["9" * 5000, "[" * 20_000], ids=["number", "list"])
def test_an_unreadable_value_is_rejected_without_showing_it(value: str) -> None:
    with pytest.raises(UsageError) as caught:
        load_file(f"[controllers]\nworkers = {value}")
    assert str(caught.value) == (
        "cannot read a value in natsctl.toml: a number is too long, or a list is nested too deeply"
    )


def test_variables_of_kubernetes_services_and_other_programs_are_ignored() -> None:
    service_links = {
        "NATSCTL_PORT": "tcp://10.0.0.1:8080",
        "NATSCTL_SERVICE_HOST": "10.0.0.1",
        "NATSCTL_SERVICE_PORT_METRICS": "8080",
        "NATSCTL_SERVER_PORT": "tcp://10.0.0.1:80",
        "NATSCTL_SERVER_PORT_80_TCP": "tcp://10.0.0.1:80",
        "NATSCTL_SERVER_PORT_80_TCP_ADDR": "10.0.0.1",
    }
    other_variables = {"WORKRES": "3", "_NATSCTL_COMPLETE": "complete_bash", "NATSCTL_EMPTY": ""}
    assert load_settings({}, {**service_links, **other_variables}).sources == {}


def test_contradicting_settings_are_rejected() -> None:
    with pytest.raises(UsageError, match="tls_cert and tls_key belong together"):
        load_settings({"tls_cert": "a.pem"}, {}).settings.check()
    kube = KubeSettings(tls_ca="ca.pem", tls_insecure=True)
    with pytest.raises(UsageError, match="exclude each other"):
        Settings(kube=kube).check()
    Settings(kube=msgspec.structs.replace(kube, enabled=False)).check()
    contradiction = {"leader_elect": True, "shard": True}
    with pytest.raises(
        UsageError, match="either one process runs a controller, or all share its keys"
    ):
        load_settings(contradiction, {}).settings.check()


# ---- the settings page of the documentation matches the settings

PAGE = (Path(__file__).parents[3] / "docs" / "settings.md").read_text()
CELL = r" (.*?) \|"
ROWS = re.findall(rf"^\| `(\S+)` \|{CELL * 4} `(.+)` \|$", PAGE, re.MULTILINE)


def row(setting: Setting) -> tuple[str, str, str, str, str, str]:
    flags, variables = (
        ", ".join(f"`{name}`" for name in names) for names in (setting.flags, setting.variables)
    )
    return (setting.name, setting.default, setting.meaning, flags, variables, setting.line())


def test_the_table_matches_the_settings() -> None:
    assert [row(setting) for setting in SETTINGS] == ROWS


def test_the_defaults_of_controllers_match_the_controller_class() -> None:
    for name in ("workers", "resync_s", "sync_timeout_s"):
        default = BY_NAME[f"controllers.{name}"].default
        assert default == f"{getattr(Controller, name):g}, unless the controller sets it"


def test_the_example_file_is_valid(tmp_path: Path) -> None:
    (text,) = re.findall(r"```toml\n(.*?)```", PAGE, re.DOTALL)
    file = tmp_path / "natsctl.toml"
    file.write_text(text)
    effective = load_settings({}, {}, config=str(file))
    names = {
        f"{section}.{name}" for section, table in tomllib.loads(text).items() for name in table
    }
    assert set(effective.sources) == names


@pytest.mark.parametrize("text", ["workers = 'ten'", "resync = 60"])
def test_the_errors_on_the_page_match_the_raised_errors(
    text: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("natsctl.toml").write_text(f"[controllers]\n{text}\n")
    with pytest.raises(UsageError) as caught:
        load_settings({}, {})
    assert f"natsctl: error: {caught.value}\n" in PAGE


def test_paths_in_a_file_are_relative_to_its_folder(folder: Path) -> None:
    (folder / "etc").mkdir()
    file = folder / "etc" / "other.toml"
    file.write_text("[nats]\ncreds = 'hub.creds'\ntls_ca = '/ca.pem'\n[kube]\nkubeconfig = 'a:/b'")
    effective = load_settings({"nkey": "mine.nk"}, {}, config="etc/other.toml").settings
    assert effective.nats.tls_ca == "/ca.pem"
    assert effective.kube.kubeconfig == "etc/a:/b"
    assert load_settings({}, {}, config="etc/other.toml").settings.nats.creds == "etc/hub.creds"
    assert (effective.nats.nkey, effective.nats.creds) == ("mine.nk", None)


def test_the_owner_domain_sets_the_names_of_the_owner_labels() -> None:
    assert ControllerSettings().owner_names == OwnerNames()
    named = load_file("[controllers]\nowner_domain = 'example.com'").settings.controllers
    assert named.owner_names.key == "example.com/owner-key"
    assert ControllerSettings(owner_domain="kumori").owner_names == KUMORI
