"""`natsctl edit`: an object in a person's editor, whatever they, or others, do meanwhile."""

import json
import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.support.cli.natsctl_command import Natsctl, Result
from tests.support.cli.scripted_editor import Editor
from tests.support.servers.nats_server import NatsServer

BYE = {"replace": {"text: hi": "text: bye"}}


@pytest.fixture
def editor(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Editor:
    made = Editor(tmp_path / "editor")
    monkeypatch.delenv("VISUAL", raising=False)
    monkeypatch.setenv("EDITOR", made.command)
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    return made


@pytest.fixture
async def natsctl(editor: Editor, folder: Path, nats_server: NatsServer) -> Natsctl:
    made = Natsctl(folder, nats_server.url)
    shop = {"metadata": {"labels": {"team": "a"}}, "spec": {"text": "hi", "replicas": 2}}
    await made.done("put", "greetings", "shop", json.dumps(shop), "--create-bucket")
    return made


async def stored(natsctl: Natsctl) -> dict[str, Any]:
    document: dict[str, Any] = json.loads(
        await natsctl.done("get", "greetings", "shop", "-o", "json")
    )
    return document


def kept(result: Result) -> str:
    """Return what is in the file that is said to be kept."""
    found = re.search(r"your text is kept in (\S+)", result.err)
    assert found is not None, result
    return Path(found[1]).read_text()


def left(folder: Path) -> list[Path]:
    """Return the files that were edited there and are there still."""
    return list(folder.glob("natsctl-*"))


async def test_an_edit_is_stored_and_all_that_is_not_shown_stays(
    natsctl: Natsctl, editor: Editor, tmp_path: Path
) -> None:
    before = await stored(natsctl)
    editor.plays(BYE)
    assert (
        await natsctl.done("edit", "greetings", "shop")
        == "greetings/shop configured at revision 2\n"
    )
    (seen,) = editor.seen
    assert seen.startswith("# greetings/shop at revision 1.\n")
    assert yaml.safe_load(seen) == {
        "metadata": {"labels": {"team": "a"}},
        "spec": {"text": "hi", "replicas": 2},
    }
    after = await stored(natsctl)
    assert after["spec"] == {"text": "bye", "replicas": 2}
    assert after["metadata"] == {**before["metadata"], "generation": 2}
    assert left(tmp_path) == []


@pytest.mark.parametrize(
    "step",
    [{}, {"write": ""}, {"write": "# nothing but a comment\n"}, {"replace": {"# Save": "# So"}}],
    ids=["as it is", "empty", "comment", "comments"],
)
async def test_an_edit_that_changes_nothing_stores_nothing(
    natsctl: Natsctl, editor: Editor, tmp_path: Path, step: dict[str, Any]
) -> None:
    editor.plays(step)
    ended = await natsctl("edit", "greetings", "shop")
    assert (ended.status, ended.out, ended.err) == (0, "", "nothing was changed\n")
    assert (await stored(natsctl))["revision"] == 1
    assert left(tmp_path) == []


async def test_a_number_can_be_made_true(natsctl: Natsctl, editor: Editor) -> None:
    await natsctl.done("put", "greetings", "shop", '{"spec": {"open": 1}}')
    editor.plays({"replace": {"open: 1": "open: true"}})
    await natsctl.done("edit", "greetings", "shop")
    after = await stored(natsctl)
    assert after["spec"]["open"] is True
    assert after["metadata"]["generation"] == 3


async def test_what_is_taken_away_is_gone(natsctl: Natsctl, editor: Editor) -> None:
    editor.plays({"write": "spec:\n  text: hi\n"})
    await natsctl.done("edit", "greetings", "shop")
    after = await stored(natsctl)
    assert after["spec"] == {"text": "hi"}
    assert "labels" not in after["metadata"]


@pytest.mark.parametrize(
    ("wrong", "told"),
    [
        ("spec: [", "# this is not valid YAML"),
        ("hello\n", "# this is not a mapping"),
        ("status:\n  ready: true\nspec: {}\n", "# status cannot be changed here"),
        ("metadata:\n  finalizers: []\nspec: {}\n", "# metadata.finalizers cannot be changed"),
        ("metadata:\n  labels: []\nspec: {}\n", "# the object would not be valid"),
        ("text: hi\n", "# it has no spec, and no value either"),
    ],
)
async def test_what_is_wrong_is_shown_again_with_the_reason_and_can_be_put_right(
    natsctl: Natsctl, editor: Editor, wrong: str, told: str
) -> None:
    editor.plays({"write": wrong}, {"write": "spec:\n  text: right\n"})
    await natsctl.done("edit", "greetings", "shop")
    _, again = editor.seen
    assert again.startswith(told)
    assert again.endswith(wrong.strip() + "\n")
    assert (await stored(natsctl))["spec"] == {"text": "right"}


@pytest.mark.parametrize("then", [{}, {"write": ""}, {"write": "spec: ["}])
async def test_who_gives_up_on_what_is_wrong_has_it_kept(
    natsctl: Natsctl, editor: Editor, then: dict[str, Any]
) -> None:
    editor.plays({"write": "# mine\nspec: ["}, then)
    ended = await natsctl("edit", "greetings", "shop")
    assert ended.status == 2
    assert "this is not valid YAML" in ended.err
    assert kept(ended) == "spec: [\n"
    assert (await stored(natsctl))["revision"] == 1


async def test_what_its_controller_would_not_take_is_not_stored(
    natsctl: Natsctl, editor: Editor
) -> None:
    editor.plays({"replace": {"replicas: 2": "replicas: many"}}, {"replace": {"many": "3"}})
    words = ("edit", "greetings", "shop", "--controller", "controllers.greetings:Greetings")
    await natsctl.done(*words)
    assert editor.seen[1].startswith("# not a valid Greeting: Expected `int`, got `str`")
    assert (await stored(natsctl))["spec"]["replicas"] == 3


async def test_what_others_change_elsewhere_meanwhile_stays(
    natsctl: Natsctl, editor: Editor
) -> None:
    theirs = '{"metadata": {"labels": {"team": "b"}}, "spec": {"text": "hi", "replicas": 5}}'
    editor.plays({**BYE, "meanwhile": ["put", "greetings", "shop", theirs]})
    await natsctl.done("edit", "greetings", "shop")
    after = await stored(natsctl)
    assert after["spec"] == {"text": "bye", "replicas": 5}
    assert after["metadata"]["labels"] == {"team": "b"}


CLASH = {
    **BYE,
    "meanwhile": ["put", "greetings", "shop", '{"spec": {"text": "ho", "replicas": 5}}'],
}


async def test_what_others_change_in_the_same_field_is_told_and_a_person_decides(
    natsctl: Natsctl, editor: Editor
) -> None:
    editor.plays(CLASH, {"replace": {"# delete this line": "#"}})
    await natsctl.done("edit", "greetings", "shop")
    _, again = editor.seen
    assert '# others have changed it in the meantime:\n#   spec.text is "ho"\n' in again
    assert yaml.safe_load(again) == {"spec": {"text": "bye", "replicas": 5}}
    assert (await stored(natsctl))["spec"] == {"text": "bye", "replicas": 5}


async def test_who_leaves_it_to_the_others_stores_nothing(natsctl: Natsctl, editor: Editor) -> None:
    editor.plays(CLASH, {})
    ended = await natsctl("edit", "greetings", "shop")
    assert ended.status == 4
    assert "shop was changed in the meantime, in spec.text: nothing was stored" in ended.err
    assert "text: bye" in kept(ended)
    assert (await stored(natsctl))["spec"] == {"text": "ho", "replicas": 5}


async def test_what_is_deleted_meanwhile_is_not_brought_back(
    natsctl: Natsctl, editor: Editor
) -> None:
    editor.plays({**BYE, "meanwhile": ["delete", "greetings", "shop"]})
    ended = await natsctl("edit", "greetings", "shop")
    assert ended.status == 3
    assert "it was deleted" in ended.err
    assert "text: bye" in kept(ended)
    assert (await natsctl("get", "greetings", "shop")).status == 3


async def test_a_value_that_is_no_object_is_edited_as_it_is(
    natsctl: Natsctl, editor: Editor
) -> None:
    await natsctl.done("put", "greetings", "motd", "Closed on Sunday")
    editor.plays({"replace": {"value: Closed on Sunday": "value: Open on Sunday"}})
    await natsctl.done("edit", "greetings", "motd")
    assert await natsctl.done("get", "greetings", "motd", "-o", "value") == "Open on Sunday"


@pytest.mark.parametrize(
    ("command", "told", "status"),
    [
        ("no-such-editor --wait", "the editor 'no-such-editor' cannot be run", 2),
        ("'", 'EDITOR is "\'", which is not a command', 2),
        ("false", "the editor ended with status 1: nothing was stored", 1),
    ],
)
async def test_an_editor_that_fails_stores_nothing(
    natsctl: Natsctl,
    folder: Path,
    nats_server: NatsServer,
    monkeypatch: pytest.MonkeyPatch,
    *,
    command: str,
    told: str,
    status: int,
) -> None:
    monkeypatch.setenv("EDITOR", command)
    ended = await Natsctl(folder, nats_server.url)("edit", "greetings", "shop")
    assert (ended.status, told in ended.err) == (status, True), ended
    assert "kept" not in ended.err
    assert (await stored(natsctl))["revision"] == 1


async def test_what_an_editor_that_fails_has_saved_is_kept_and_not_stored(
    natsctl: Natsctl, editor: Editor
) -> None:
    editor.plays({**BYE, "exits": 3})
    ended = await natsctl("edit", "greetings", "shop")
    assert (ended.status, "status 3" in ended.err) == (1, True), ended
    assert "text: bye" in kept(ended)
    assert (await stored(natsctl))["revision"] == 1


async def test_what_is_not_there_is_not_edited(natsctl: Natsctl, editor: Editor) -> None:
    editor.plays()
    assert (await natsctl("edit", "greetings", "nothing")).status == 3
    assert (await natsctl("edit", "nowhere", "shop")).status == 3
    other = await natsctl("edit", "greetings", "shop", "-c", "controllers.webapps:WebApps")
    assert (other.status, "has no kind in bucket greetings" in other.err) == (2, True)
    assert editor.seen == []
