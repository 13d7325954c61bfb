"""`lines_of` gives the line number of each setting in a TOML file."""

import tomllib

from hypothesis import given
from hypothesis import strategies as st

from natsctl.daemon.settings.toml_file import STATEMENT_MAX, lines_of


def test_sections_and_their_settings_have_lines() -> None:
    text = """# a comment
[nats]   # another

servers = [
    "[kube]",
    "nats://b",
]
creds = "x"
[kube]
context = '''
[logs]
level = "debug"'''
namespace = "apps"
"""
    assert tomllib.loads(text)["nats"]["creds"] == "x"
    assert lines_of(text) == {
        ("nats",): 2,
        ("nats", "servers"): 4,
        ("nats", "creds"): 8,
        ("kube",): 9,
        ("kube", "context"): 10,
        ("kube", "namespace"): 13,
    }


def test_dotted_names_and_inline_tables_have_lines() -> None:
    text = 'logs.format = "json"\nkube = { context = "a", server = "b" }\nnats.user = "ann"\n'
    assert lines_of(text) == {
        ("logs",): 1,
        ("logs", "format"): 1,
        ("kube",): 2,
        ("kube", "context"): 2,
        ("kube", "server"): 2,
        ("nats",): 3,
        ("nats", "user"): 3,
    }


def test_only_toml_line_breaks_end_a_line() -> None:
    assert lines_of('[nats]\r\nuser = "a\u2028b"\r\ntoken = "c"\r\n') == {
        ("nats",): 1,
        ("nats", "user"): 2,
        ("nats", "token"): 3,
    }


def test_settings_after_a_very_long_value_have_no_lines() -> None:
    text = '[nats]\nuser = "ann"\nname = """\n' + "x\n" * STATEMENT_MAX + '"""\ntoken = "t"\n'
    assert lines_of(text) == {("nats",): 1, ("nats", "user"): 2}


@given(st.lists(st.sampled_from(["", "# note", "x = 1", 'y = """\na\n\nb"""', "z = [\n1,\n]"])))
def test_every_setting_has_the_line_of_its_first_character(blocks: list[str]) -> None:
    numbered = [block.replace(" =", f"{n} =", 1) for n, block in enumerate(blocks)]
    text = "\n".join(["[section]", *numbered])
    numbers = lines_of(text)
    lines = text.split("\n")
    for name in tomllib.loads(text)["section"]:
        assert lines[numbers["section", name] - 1].startswith(f"{name} =")
