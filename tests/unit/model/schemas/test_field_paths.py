"""Paths of fields: parsing, values, texts and order."""

import pytest

from natsctl import Object, kv
from natsctl.errors import UsageError
from natsctl.model.schemas.field_paths import FieldPath, parse_columns

DOCUMENT = {
    "key": "shop",
    "metadata": {"labels": {"a.b/c": "x"}},
    "spec": {
        "image": "nginx",
        "ports": [{"name": "http", "number": 80}, {"name": "https", "number": 443}],
        "open": True,
        "nothing": None,
        "size": {"x": 1},
    },
}


@pytest.mark.parametrize(
    ("path", "text"),
    [
        ("key", "shop"),
        ("spec.image", "nginx"),
        (".spec.image", "nginx"),
        ("{.spec.image}", "nginx"),
        ("$.spec.image", "nginx"),
        ("spec['image']", "nginx"),
        (r"metadata.labels.a\.b/c", "x"),
        ('metadata.labels["a.b/c"]', "x"),
        ("spec.ports[0].name", "http"),
        ("spec.ports[-1].number", "443"),
        ("spec.ports[*].name", "http,https"),
        ("spec.open", "true"),
        ("spec.size", '{"x":1}'),
        ("spec.size.*", "<none>"),
        ("spec.missing", "<none>"),
        ("spec.nothing", "<none>"),
        ("spec.image.deeper", "<none>"),
        ("spec.ports[9].name", "<none>"),
        ("spec.ports.name", "<none>"),
    ],
)
def test_a_path_has_the_text_of_its_field(path: str, text: str) -> None:
    assert FieldPath.parse(path).text_in(DOCUMENT) == text


@pytest.mark.parametrize("text", ["", ".", "a..b", "a[", "a[x]", "a b", "a]", "{}", "a.", "'a'"])
def test_a_malformed_path_is_refused(text: str) -> None:
    with pytest.raises(UsageError, match="is not the path of a field"):
        FieldPath.parse(text)


def test_numbers_are_before_texts_and_missing_fields_are_last() -> None:
    path = FieldPath.parse("a")
    values: list[object] = ["v10", 10, None, "v9", 2.5, "", "B", "a", True]
    documents = [{} if value is None else {"a": value} for value in values]
    ordered = [document.get("a") for document in sorted(documents, key=path.sort_key)]
    assert ordered == [True, 2.5, 10, "", "a", "B", "v9", "v10", None]


@pytest.mark.parametrize("heading", ["", " A", "A\n"])
def test_a_heading_that_cannot_be_printed_is_refused(heading: str) -> None:
    with pytest.raises(UsageError, match="is not the heading of a column"):
        parse_columns({heading: "spec"})


def test_a_kind_with_a_malformed_column_is_refused() -> None:
    with pytest.raises(UsageError, match=r"'spec\.\.image' is not the path of a field"):
        kv(Object, bucket="b", columns={"IMAGE": "spec..image"})
