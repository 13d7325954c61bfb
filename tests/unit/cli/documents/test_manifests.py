"""`read_documents` reads manifests of buckets and keys from files and folders."""

from pathlib import Path

import pytest

from natsctl.cli.values import DesiredObject, KeyDocument, RawValue, read_documents
from natsctl.errors import UsageError


def names(documents: list[KeyDocument]) -> list[str]:
    return [f"{manifest.bucket}/{manifest.key}" for manifest in documents]


def test_read_documents_keeps_the_order_of_files_lists_and_documents(tmp_path: Path) -> None:
    (tmp_path / "b.yaml").write_text(
        "bucket: x\nkey: one\nspec: {a: 1}\n---\n---\n- {bucket: x, key: two, spec: {}}\n"
    )
    (tmp_path / "a.json").write_text('[{"bucket": "y", "key": "three", "value": "text"}]')
    (tmp_path / "notes.txt").write_text("no manifest")
    manifests = read_documents([str(tmp_path), str(tmp_path / "a.json")])
    assert names(manifests) == ["y/three", "x/one", "x/two", "y/three"]
    assert manifests[0].new == RawValue(b"text")
    assert manifests[1].new == DesiredObject({"spec": {"a": 1}})


def test_read_documents_reads_lines_of_json(tmp_path: Path) -> None:
    file = tmp_path / "changes"
    lines = [
        '{"bucket": "x", "key": "one", "value": 1.10}',
        '{"bucket": "x", "key": "two", "value": 2}',
    ]
    file.write_text("\n\n".join(lines))
    documents = read_documents([str(file)])
    assert names(documents) == ["x/one", "x/two"]
    assert documents[0].new == RawValue(b"1.10")


@pytest.mark.parametrize(
    ("text", "wrong"),
    [
        ("key: a\nspec: 1", 'document 1: it has no bucket: add a line such as "bucket: greetings"'),
        (
            "{bucket: b, key: a, spec: 1}\n---\n{bucket: b, spec: 1}",
            'document 2: it has no key: add a line such as "key: shop"',
        ),
        ("bucket: b\nkey: 5\nspec: 1", 'document 1: it has no key: add a line such as "key: shop"'),
        ("bucket: b\nkey: a..b\nspec: 1", "document 1: key 'a..b'"),
        ("bucket: b/c\nkey: a\nspec: 1", "document 1: bucket 'b/c'"),
        ("bucket: b\nkey: a\nsepc: 1", "document 1: it has no spec"),
        ("just text", "document 1: it is not a mapping"),
        ('{"bucket": "b"}\n{"bucket": ', "is neither YAML nor JSON"),
        ('{"bucket": "b", "key": "a", "spec": 1}\n5', "document 2: it is not a mapping"),
        ("a: [", "is neither YAML nor JSON"),
        ('{"bucket": "b"}\n{"spec": 1, "spec": 2}', "found the field 'spec' twice"),
        ("key: a\n---\nspec: {a: 1, a: 2}", "found the field 'a' twice"),
        ("", "there is no document in"),
    ],
)
def test_an_error_names_the_file_and_the_document(tmp_path: Path, text: str, wrong: str) -> None:
    file = tmp_path / "some.yaml"
    file.write_text(text)
    with pytest.raises(UsageError) as caught:
        read_documents([str(file)])
    assert wrong in str(caught.value)
    assert str(file) in str(caught.value)
    assert "\n" not in str(caught.value)


def test_the_error_for_a_missing_file_names_the_file(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"none\.yaml cannot be read: No such file"):
        read_documents([str(tmp_path / "none.yaml")])
