"""The error of a denied request names the subject to allow."""

import pytest

from natsctl.jetstream.requests import may_not_publish

NAME = "natsctl-0HSedCYYFF9xWgLVaBBqLS"


@pytest.mark.parametrize(
    ("subject", "allowed"),
    [
        ("$KV.routes.natsctl-shop", "$KV.routes.natsctl-shop"),
        ("$JS.API.STREAM.INFO.KV_a-b", "$JS.API.STREAM.INFO.KV_a-b"),
        (f"$JS.API.CONSUMER.DELETE.KV_a-b.{NAME}", "$JS.API.CONSUMER.DELETE.KV_a-b.*"),
        (
            f"$JS.hub.API.CONSUMER.CREATE.KV_apps.{NAME}.$KV.apps.>",
            "$JS.hub.API.CONSUMER.CREATE.KV_apps.*.$KV.apps.>",
        ),
    ],
)
def test_a_denied_request_names_no_random_consumer(subject: str, allowed: str) -> None:
    error = str(may_not_publish(subject))
    assert f"may not publish to {allowed}: allow it in the user's permissions" in error
