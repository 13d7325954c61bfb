"""Label selectors have the syntax and the meaning that kubectl gives them."""

import pytest

from natsctl import Selector
from natsctl.errors import UsageError
from natsctl.model.selectors import Requirement


def test_every_kind_of_requirement_can_be_combined() -> None:
    assert set(Selector.parse("a=b,c!=d,e in (x,y),f notin (z),g,!h").requirements) == {
        Requirement("a", "in", frozenset("b")),
        Requirement("c", "notin", frozenset("d")),
        Requirement("e", "in", frozenset("xy")),
        Requirement("f", "notin", frozenset("z")),
        Requirement("g", "exists"),
        Requirement("h", "absent"),
    }


def test_equivalent_selectors_are_equal() -> None:
    assert Selector.parse("a=1,b in (x,y)") == Selector.parse("b in (y,x,x),a in (1)")
    assert hash(Selector.parse("a,b")) == hash(Selector.parse("b,a"))
    one, other = Requirement("a", "exists"), Requirement("b", "exists")
    assert Selector((other, one)) == Selector((one, other))


@pytest.mark.parametrize(
    ("text", "pointer", "reason"),
    [
        ("a=b,c=(d", "      ^", "expected a label's value, found '('"),
        ("a=b,", "    ^", "expected a label's key, found the end"),
        (",a", "^", "expected a label's key, found ','"),
        ("!", " ^", "expected a label's key, found the end"),
        ("a b", "  ^", "expected =, !=, in, notin or a comma, found 'b'"),
        ("a>1", " ^", "expected =, !=, in, notin or a comma, found '>'"),
        ("a=b c", "    ^", "expected a comma, found 'c'"),
        ("a=b=c", "   ^", "expected a comma, found '='"),
        ("!a=b", "  ^", "expected a comma, found '='"),
        ("a in b", "     ^", "expected ( and values, found 'b'"),
        ("a in ()", "      ^", "expected a value, found ')'"),
        ("a in (b", "       ^", "expected a comma or ), found the end"),
        ("a in (b c)", "        ^", "expected a comma or ), found 'c'"),
        ('a="b"', "  ^", "expected a label's value, found '\"b\"': at most 63"),
        ("a=b,_c", "    ^", "expected a label's key, found '_c': at most 63"),
        ("Up/a", "^", "it may have a prefix that is a DNS name and /"),
        (f"a={'x' * 64}", "  ^", "at most 63"),
        (f"{'x' * 64}=a", "^", "at most 63"),
        (f"{'d.' * 127}d/a=b", "^", "a DNS name"),
        ("a=\n(", "   ^", "found '('"),
    ],
)
def test_a_syntax_error_shows_its_position(text: str, pointer: str, reason: str) -> None:
    with pytest.raises(UsageError) as error:
        Selector.parse(text)
    message, *picture = str(error.value).split("\n")
    assert reason in message
    assert picture == [f"  {text}".replace("\n", " "), f"  {pointer}"]


def test_a_key_and_a_value_may_have_63_characters_and_a_domain_253() -> None:
    domain = f"{'d.' * 126}d"
    selector = Selector.parse(f"{domain}/{'k' * 63}={'v' * 63}")
    assert selector.matches({f"{domain}/{'k' * 63}": "v" * 63})


def test_a_requirement_with_an_invalid_label_is_refused() -> None:
    with pytest.raises(UsageError, match="'a b' is not a label key"):
        Selector.of({"a b": "c"})
    with pytest.raises(UsageError, match="'x/y' is not a label value"):
        Selector.of({"a": "x/y"})
    with pytest.raises(UsageError, match="the label a has no value"):
        Requirement("a", "in")
    with pytest.raises(UsageError, match="'!' is not a label key"):
        Requirement("!", "absent")
