"""Warning headers of a server are logged once for each text."""

import pytest

from natsctl.kubernetes.transport import REMEMBERED_MAX, ServerWarnings, warning_texts


@pytest.mark.parametrize(
    ("header", "texts"),
    [
        ('299 - "v1 Thing is deprecated"', ["v1 Thing is deprecated"]),
        ('299 - "one", 299 - "two, and more"', ["one", "two, and more"]),
        ('299 - "say \\"no\\""', ['say "no"']),
        ('299 - "one\tline"', ["one line"]),
        ('299 - "dated" "Sat, 25 Aug 2012 23:34:45 GMT"', ["dated"]),
        ('110 - "Response is Stale"', []),
        ('299 - "not ended', []),
        ("", []),
    ],
)
def test_the_texts_of_a_warning_header_are_parsed(header: str, texts: list[str]) -> None:
    assert warning_texts(header) == texts


def test_each_text_is_logged_once(caplog: pytest.LogCaptureFixture) -> None:
    warnings = ServerWarnings()
    for _ in range(5):
        warnings.log('299 - "one", 299 - "two"')
    assert caplog.messages == [
        "server sent a warning warning=one",
        "server sent a warning warning=two",
    ]


def test_only_the_newest_texts_are_remembered(caplog: pytest.LogCaptureFixture) -> None:
    warnings = ServerWarnings()
    for number in range(REMEMBERED_MAX + 1):
        warnings.log(f'299 - "text {number}"')
    caplog.clear()
    warnings.log('299 - "text 1"')
    assert caplog.messages == []
    warnings.log('299 - "text 0"')
    assert caplog.messages == ["server sent a warning warning='text 0'"]
