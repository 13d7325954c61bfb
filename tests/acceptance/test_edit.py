"""`natsctl edit` opens an object in an editor and merges concurrent changes."""

import json
import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.support.cli import forked_command
from tests.support.cli.forked_process import FORKS
from tests.support.cli.natsctl_command import Natsctl, Result
from tests.support.cli.scripted_editor import Editor
from tests.support.servers.nats_server import NatsServer

BYE = {"replace": {"text: hi": "text: bye"}}


@pytest.fixture
def editor(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Editor:
    created = Editor(tmp_path / "editor")
    monkeypatch.delenv("VISUAL", raising=False)
    monkeypatch.setenv("EDITOR", created.command)
    monkeypatch.setenv(forked_command.VARIABLE, FORKS.address)
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    return created


@pytest.fixture
async def natsctl(editor: Editor, folder: Path, nats_server: NatsServer) -> Natsctl:
    created = Natsctl(folder, nats_server.url)
    shop = {"metadata": {"labels": {"team": "a"}}, "spec": {"text": "hi", "replicas": 2}}
    await created.done("put", "greetings", "shop", json.dumps(shop), "--create-bucket")
    return created


async def stored(natsctl: Natsctl) -> dict[str, Any]:
    document: dict[str, Any] = json.loads(
        await natsctl.done("get", "greetings", "shop", "-o", "json")
    )
    return document


def kept(result: Result) -> str:
    """Return the text of the file that the error message names."""
    match = re.search(r"your text is kept in (\S+)", result.err)
    assert match is not None, result
    return Path(match[1]).read_text()


@pytest.mark.parametrize(
    ("wrong", "expected"),
    [
        ("spec: [", "# this is not valid YAML"),
        ("hello\n", "# this is not a mapping"),
        ("status:\n  ready: true\nspec: {}\n", "# status cannot be changed here"),
        ("metadata:\n  finalizers: []\nspec: {}\n", "# metadata.finalizers cannot be changed"),
        ("metadata:\n  labels: []\nspec: {}\n", "# the object would not be valid"),
        ("text: hi\n", "# it has no spec, and no value either"),
    ],
)
async def test_an_invalid_edit_is_shown_again_with_the_reason(
    natsctl: Natsctl, editor: Editor, wrong: str, expected: str
) -> None:
    editor.set_steps({"write": wrong}, {"write": "spec:\n  text: right\n"})
    await natsctl.done("edit", "greetings", "shop")
    _, second_text = editor.seen
    assert second_text.startswith(expected)
    assert second_text.endswith(wrong.strip() + "\n")
    assert (await stored(natsctl))["spec"] == {"text": "right"}


@pytest.mark.parametrize("second_step", [{}, {"write": ""}, {"write": "spec: ["}])
async def test_an_abandoned_invalid_edit_is_kept_in_a_file(
    natsctl: Natsctl, editor: Editor, second_step: dict[str, Any]
) -> None:
    editor.set_steps({"write": "# mine\nspec: ["}, second_step)
    ended = await natsctl("edit", "greetings", "shop")
    assert ended.status == 2
    assert "this is not valid YAML" in ended.err
    assert kept(ended) == "spec: [\n"
    assert (await stored(natsctl))["revision"] == 1


async def test_edit_checks_the_object_against_the_type_of_the_controller(
    natsctl: Natsctl, editor: Editor
) -> None:
    editor.set_steps({"replace": {"replicas: 2": "replicas: many"}}, {"replace": {"many": "3"}})
    words = ("edit", "greetings", "shop", "--controller", "controllers.greetings:Greetings")
    await natsctl.done(*words)
    assert editor.seen[1].startswith("# not a valid Greeting: Expected `int`, got `str`")
    assert (await stored(natsctl))["spec"]["replicas"] == 3


async def test_edit_keeps_concurrent_changes_of_other_fields(
    natsctl: Natsctl, editor: Editor
) -> None:
    other_value = '{"metadata": {"labels": {"team": "b"}}, "spec": {"text": "hi", "replicas": 5}}'
    editor.set_steps({**BYE, "meanwhile": ["put", "greetings", "shop", other_value]})
    await natsctl.done("edit", "greetings", "shop")
    after = await stored(natsctl)
    assert after["spec"] == {"text": "bye", "replicas": 5}
    assert after["metadata"]["labels"] == {"team": "b"}


CLASH = {
    **BYE,
    "meanwhile": ["put", "greetings", "shop", '{"spec": {"text": "ho", "replicas": 5}}'],
}


async def test_a_concurrent_change_of_the_same_field_is_shown_for_a_decision(
    natsctl: Natsctl, editor: Editor
) -> None:
    editor.set_steps(CLASH, {"replace": {"# delete this line": "#"}})
    await natsctl.done("edit", "greetings", "shop")
    _, second_text = editor.seen
    assert '# other clients have changed these fields:\n#   spec.text is "ho"\n' in second_text
    assert yaml.safe_load(second_text) == {"spec": {"text": "bye", "replicas": 5}}
    assert (await stored(natsctl))["spec"] == {"text": "bye", "replicas": 5}


async def test_an_unresolved_conflict_stores_nothing(natsctl: Natsctl, editor: Editor) -> None:
    editor.set_steps(CLASH, {})
    ended = await natsctl("edit", "greetings", "shop")
    assert ended.status == 4
    assert "shop was changed in the meantime, in spec.text: nothing was stored" in ended.err
    assert "text: bye" in kept(ended)
    assert (await stored(natsctl))["spec"] == {"text": "ho", "replicas": 5}


async def test_edit_does_not_recreate_a_key_that_was_deleted_concurrently(
    natsctl: Natsctl, editor: Editor
) -> None:
    editor.set_steps({**BYE, "meanwhile": ["delete", "greetings", "shop"]})
    ended = await natsctl("edit", "greetings", "shop")
    assert ended.status == 3
    assert "it was deleted" in ended.err
    assert "text: bye" in kept(ended)
    assert (await natsctl("get", "greetings", "shop")).status == 3


async def test_text_that_a_failed_editor_saved_is_kept_in_a_file(
    natsctl: Natsctl, editor: Editor
) -> None:
    editor.set_steps({**BYE, "exits": 3})
    ended = await natsctl("edit", "greetings", "shop")
    assert (ended.status, "status 3" in ended.err) == (1, True), ended
    assert "text: bye" in kept(ended)
    assert (await stored(natsctl))["revision"] == 1
