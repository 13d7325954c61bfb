"""A key is quarantined after processes died in a row while they synced it in the same state."""

import msgspec
import pytest

from natsctl.core.pausing.quarantine import DEATHS_MAX, Deaths, Quarantine, deaths_in, one_more
from natsctl.model.times import time_in


def deaths(count: int, state: str = "one") -> Deaths:
    return Deaths(count=count, last="2026-01-01T00:00:00Z", state=state)


class TestDeaths:
    def test_the_first_death_counts(self) -> None:
        first = one_more(None, "one", "p1")
        assert (first.count, first.state, first.processes) == (1, "one", ("p1",))

    def test_a_death_has_its_time(self) -> None:
        assert time_in(one_more(None, "one", "p1").last) is not None

    def test_the_death_of_another_process_counts(self) -> None:
        assert one_more(one_more(None, "one", "p1"), "one", "p2").count == 2

    def test_no_death_counts_twice(self) -> None:
        once = one_more(None, "one", "p1")
        assert one_more(once, "one", "p1") is once

    def test_deaths_of_another_state_do_not_count(self) -> None:
        assert one_more(deaths(7), "two", "p1").count == 1

    def test_only_the_last_processes_are_named(self) -> None:
        deaths = None
        for number in range(DEATHS_MAX + 1):
            deaths = one_more(deaths, "one", f"p{number}")
        assert deaths is not None
        assert deaths.processes == tuple(f"p{number}" for number in range(1, DEATHS_MAX + 1))

    @pytest.mark.parametrize(
        ("count", "text"), [(1, "1 process died during"), (2, "2 processes died during")]
    )
    def test_deaths_are_a_phrase_with_the_last_time(self, count: int, text: str) -> None:
        assert str(deaths(count)).startswith(text)
        assert "2026-01-01" in str(deaths(count))

    def test_a_record_has_its_deaths(self) -> None:
        assert deaths_in(msgspec.json.encode(deaths(2))) == deaths(2)

    def test_a_record_that_does_not_decode_has_no_deaths(self) -> None:
        assert deaths_in(b"?") is None


class TestQuarantine:
    @pytest.fixture
    def over(self) -> list[str]:
        return []

    @pytest.fixture
    def states(self) -> dict[str, str]:
        """The known states of objects by key, which tests change."""
        return {"shop": "one"}

    @pytest.fixture
    def quarantine(self, over: list[str], states: dict[str, str]) -> Quarantine:
        return Quarantine(over.append, states.get)

    @pytest.mark.parametrize(
        ("count", "quarantined"), [(DEATHS_MAX - 1, []), (DEATHS_MAX, ["shop"])]
    )
    def test_a_key_is_quarantined_after_so_many_deaths(
        self, quarantine: Quarantine, count: int, quarantined: list[str]
    ) -> None:
        quarantine.found("shop", deaths(count))
        assert list(quarantine.quarantined) == quarantined

    @pytest.mark.parametrize("known", [{"shop": "two"}, {}])
    def test_a_key_with_another_state_is_not_quarantined(self, known: dict[str, str]) -> None:
        quarantine = Quarantine(list[str]().append, known.get)
        quarantine.found("shop", deaths(DEATHS_MAX))
        assert not quarantine.quarantined

    def test_a_key_without_a_record_is_released(self, quarantine: Quarantine) -> None:
        quarantine.found("shop", deaths(DEATHS_MAX))
        quarantine.found("shop", None)
        assert (quarantine.quarantined, quarantine.deaths) == ({}, {})

    def test_a_key_whose_state_has_changed_is_released_by_a_check(
        self, quarantine: Quarantine, over: list[str], states: dict[str, str]
    ) -> None:
        quarantine.found("shop", deaths(DEATHS_MAX))
        states["shop"] = "two"
        quarantine.check()
        assert (over, quarantine.over) == (["shop"], {"shop"})
        assert (quarantine.quarantined, quarantine.deaths) == ({}, {})

    def test_a_key_whose_state_was_not_known_is_quarantined_by_a_check(
        self, quarantine: Quarantine, states: dict[str, str]
    ) -> None:
        states.clear()
        quarantine.found("shop", deaths(DEATHS_MAX))
        states["shop"] = "one"
        quarantine.check()
        assert list(quarantine.quarantined) == ["shop"]

    def test_a_check_without_a_state_changes_nothing(
        self, quarantine: Quarantine, states: dict[str, str]
    ) -> None:
        quarantine.found("shop", deaths(DEATHS_MAX))
        states.clear()
        quarantine.check()
        assert list(quarantine.quarantined) == ["shop"]

    def test_a_released_key_may_be_synced(self, quarantine: Quarantine, over: list[str]) -> None:
        quarantine.found("shop", deaths(DEATHS_MAX))
        quarantine.release("shop")
        assert (over, quarantine.quarantined) == (["shop"], {})

    def test_a_key_without_deaths_has_no_record_to_delete(
        self, quarantine: Quarantine, over: list[str]
    ) -> None:
        quarantine.release("shop")
        assert (over, quarantine.over) == ([], set())

    def test_a_record_that_is_read_again_is_not_over(self, quarantine: Quarantine) -> None:
        quarantine.found("shop", deaths(1))
        quarantine.release("shop")
        quarantine.found("shop", deaths(1))
        assert not quarantine.over
