"""Checks say together whether a process is well, in the words of a kube-apiserver."""

from natsctl.telemetry.health import Check, Verdict

WELL = Verdict("readyz", (Check("nats"), Check("cache")))
ILL = Verdict("readyz", (Check("nats"), Check("cache", "not listed\n  yet")))


def test_all_is_well_where_no_check_fails() -> None:
    assert WELL.passed
    assert WELL.text() == "ok"


def test_why_a_check_fails_is_told_without_secrets() -> None:
    leaking = Verdict("readyz", (Check("nats", "no way to nats://ann:hush@hub"),))
    assert "[-]nats failed: no way to nats://***@hub\n" in leaking.text()


def test_each_check_has_a_line_where_that_is_asked_for() -> None:
    assert WELL.text(verbose=True) == "[+]nats ok\n[+]cache ok\nreadyz check passed\n"


def test_one_check_that_fails_is_enough_and_its_reason_is_told_unasked_on_one_line() -> None:
    assert not ILL.passed
    told = "[+]nats ok\n[-]cache failed: not listed yet\nreadyz check failed\n"
    assert ILL.text() == told
    assert ILL.text(verbose=True) == told
