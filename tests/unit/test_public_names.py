"""Public names: loaded on first use, and deprecated ones keep working."""

import pytest

import natsctl


def test_a_renamed_name_warns_and_gives_the_new_object() -> None:
    with pytest.warns(DeprecationWarning, match=r"natsctl\.Action .* use natsctl\.ChangeType"):
        renamed = natsctl.Action  # type: ignore[attr-defined]
    assert renamed is natsctl.ChangeType


def test_an_unknown_name_raises_attribute_error() -> None:
    with pytest.raises(AttributeError, match="no attribute 'Unknown'"):
        natsctl.Unknown  # type: ignore[attr-defined]  # noqa: B018
