"""Management and deletion policies in annotations and specs."""

import pytest

from natsctl import AnnotationNames
from natsctl.errors import InvalidObjectError
from natsctl.managed.policies import Permissions, permissions

NAMES = AnnotationNames()


@pytest.mark.parametrize(
    ("policy", "expected"),
    [
        ("default", Permissions()),
        ("observe-create-update", Permissions(delete=False)),
        ("observe-delete", Permissions(create=False, update=False)),
        ("observe", Permissions(create=False, update=False, delete=False)),
    ],
)
def test_management_policies_map_to_permissions(policy: str, expected: Permissions) -> None:
    assert permissions({NAMES.management_policy: policy}, {}, NAMES) == expected
    assert permissions({}, {"managementPolicy": policy}, NAMES) == expected


@pytest.mark.parametrize("field", ["deletionPolicy", "deletion_policy"])
@pytest.mark.parametrize("word", ["Orphan", "orphan"])
def test_a_spec_may_set_the_deletion_policy(field: str, word: str) -> None:
    assert permissions({}, {field: word}, NAMES) == Permissions(delete=False)


def test_an_annotation_overrides_the_spec_and_the_spec_overrides_the_controller() -> None:
    spec = {"deletionPolicy": "Orphan"}
    assert permissions({NAMES.deletion_policy: "delete"}, spec, NAMES, deletion="orphan").delete
    assert permissions({}, {"deletionPolicy": "Delete"}, NAMES, deletion="orphan").delete
    assert not permissions({}, {}, NAMES, deletion="orphan").delete


def test_deletion_needs_both_policies() -> None:
    annotations = {NAMES.management_policy: "observe", NAMES.deletion_policy: "delete"}
    assert not permissions(annotations, {}, NAMES).delete


@pytest.mark.parametrize("key", [NAMES.management_policy, NAMES.deletion_policy])
def test_an_unknown_policy_is_refused_with_a_list_of_valid_ones(key: str) -> None:
    with pytest.raises(InvalidObjectError, match=r"'nothing'.*(observe|orphan)"):
        permissions({key: "nothing"}, {}, NAMES)


def test_the_error_about_a_policy_quotes_only_its_beginning() -> None:
    with pytest.raises(InvalidObjectError) as caught:
        permissions({NAMES.management_policy: "x" * 130_000}, {}, NAMES)
    assert len(str(caught.value)) < 300
