"""A member divides the keys with the members that it sees, and takes no key that others claim."""

import math
from typing import Any

import msgspec
import pytest

from natsctl import kv
from natsctl.core.coordination.assignment import ALL, NONE
from natsctl.core.coordination.membership import Group, Membership, Rebalance, SharedAssignment
from natsctl.core.coordination.own_record import TAKE_OVER, Workload
from natsctl.core.coordination.rendezvous import MemberSet
from natsctl.core.table import Cache
from natsctl.model.store import Applied, Deleted, IllegalKey, Listed, Listing, Stored

KIND = kv(Membership, bucket="members")
KEYS = [f"k{number}" for number in range(40)]
TTL_S = 10.0
DEAD_S = TAKE_OVER * TTL_S  # after the last change of its record, a silent member is dead
OURS, OTHERS = Workload("App.apps", "one"), Workload("App.apps", "two")


def record(name: str, *members: str, **fields: Any) -> Membership:
    """Return the record of a member that divides the keys among the given members."""
    plain = Membership(name, "2026-01-01T00:00:00Z", TTL_S, members, left=False, work=OURS)
    return msgspec.structs.replace(plain, **fields)


class View:
    """The group as the member `me` sees it, at a time that tests set."""

    def __init__(self) -> None:
        self.now = 0.0
        self.revision = 0
        self.cache = Cache(KIND)
        self.group = Group(
            cache=self.cache,
            key="me",
            identity="me",
            clock=lambda: self.now,
            ttl_s=TTL_S,
            workload=OURS,
        )
        for event in (Listing("1"), Listed(0)):
            self.cache.apply(event)

    def put(self, *records: Membership) -> None:
        """Write the records, each under the name of its member."""
        for written in records:
            self.write(written.holder, msgspec.json.encode(written))

    def write(self, key: str, value: bytes) -> None:
        self.revision += 1
        self.cache.apply(Applied(Stored(key, self.revision, value)))
        self.group.look()

    def delete(self, key: str) -> None:
        self.revision += 1
        self.cache.apply(Deleted(key, self.revision))
        self.group.look()

    def prove(self, at: float) -> None:
        """Let time pass until *at*, and prove all silence up to then."""
        self.now = at
        self.group.prove(at)

    def owned(self, *members: str) -> set[str]:
        """Return the keys that belong to this process if it divides them among these members."""
        assignment = self.group.assignment(MemberSet(members))
        return {key for key in KEYS if assignment.has(key)}


def given(members: tuple[str, ...], name: str) -> set[str]:
    """Return the keys that the members give to one of them."""
    return {key for key in KEYS if MemberSet(members).gives(key, name)}


@pytest.fixture
def view() -> View:
    return View()


class TestLiving:
    def test_a_member_without_others_is_alone(self, view: View) -> None:
        view.group.look()
        assert view.group.living == MemberSet(["me"])

    def test_every_member_with_a_record_lives(self, view: View) -> None:
        view.put(record("me"), record("one"), record("two"))
        assert view.group.living == MemberSet(["me", "one", "two"])

    def test_a_member_that_left_does_not_live(self, view: View) -> None:
        view.put(record("one", left=True, ttl_s=0))
        assert view.group.living == MemberSet(["me"])

    def test_a_member_with_other_work_is_not_of_the_group(self, view: View) -> None:
        view.put(record("one", work=OTHERS))
        assert view.group.living == MemberSet(["me"])

    @pytest.mark.parametrize(
        "impossible", [record("one", ttl_s=0), record("one", ttl_s=1e9), record("")]
    )
    def test_a_record_that_no_member_writes_is_ignored(
        self, view: View, impossible: Membership
    ) -> None:
        view.write("one", msgspec.json.encode(impossible))
        assert view.group.living == MemberSet(["me"])

    def test_a_member_is_dead_after_its_silence_is_proven(self, view: View) -> None:
        view.put(record("one"))
        view.prove(DEAD_S)
        assert view.group.living == MemberSet(["me"])

    def test_a_member_lives_until_its_silence_is_proven(self, view: View) -> None:
        view.put(record("one"))
        view.prove(math.nextafter(DEAD_S, 0))
        assert view.group.living == MemberSet(["me", "one"])

    def test_silence_that_is_not_proven_proves_nothing(self, view: View) -> None:
        view.put(record("one"))
        view.now = 100 * TTL_S
        assert view.group.living == MemberSet(["me", "one"])

    def test_a_dead_member_stays_dead_after_an_older_proof(self, view: View) -> None:
        view.put(record("one"))
        view.prove(DEAD_S)
        view.group.prove(1)
        assert view.group.living == MemberSet(["me"])

    def test_a_changed_record_ends_the_silence(self, view: View) -> None:
        view.put(record("one"))
        view.now = 5
        view.put(record("one", renewals=1))
        view.prove(DEAD_S)
        assert view.group.living == MemberSet(["me", "one"])

    def test_a_record_that_is_seen_again_does_not_end_the_silence(self, view: View) -> None:
        view.put(record("one"))
        view.now = 5
        view.group.look()
        view.prove(DEAD_S)
        assert view.group.living == MemberSet(["me"])

    def test_another_record_at_the_same_revision_ends_the_silence(self, view: View) -> None:
        view.put(record("one"))
        view.now, view.revision = 5, 0
        view.put(record("one", renewals=1))
        view.prove(DEAD_S)
        assert view.group.living == MemberSet(["me", "one"])


class TestLost:
    """A member whose record is lost keeps its last claim until it is dead."""

    def test_a_deleted_record_keeps_its_claim(self, view: View) -> None:
        view.put(record("one", "one", "me"))
        view.delete("one")
        assert view.group.lost == ("one",)
        assert view.owned("me") == given(("one", "me"), "me")

    def test_an_invalid_record_keeps_the_claim_before(self, view: View) -> None:
        view.put(record("one", "one", "me"))
        view.write("one", b"?")
        assert view.group.lost == ("one",)
        assert view.owned("me") == given(("one", "me"), "me")

    def test_an_invalid_record_that_was_never_valid_claims_every_key(self, view: View) -> None:
        view.write("one", b"?")
        assert view.owned("me") == set()

    def test_a_member_whose_record_was_never_valid_is_named_by_its_key(self, view: View) -> None:
        view.write("one", b"?")
        assert view.group.lost == ("one",)

    def test_a_deletion_after_an_invalid_record_does_not_restart_the_silence(
        self, view: View
    ) -> None:
        view.write("one", b"?")
        view.now = 5
        view.delete("one")
        view.prove(DEAD_S)
        assert view.group.lost == ()

    def test_an_invalid_own_record_is_not_lost(self, view: View) -> None:
        view.write("me", b"?")
        assert view.group.lost == ()

    def test_a_lost_record_without_members_claims_every_key(self, view: View) -> None:
        view.put(record("one"))
        view.delete("one")
        assert view.owned("me") == set()

    def test_an_old_record_without_members_claims_no_key(self, view: View) -> None:
        view.put(record("one", left=None))
        view.delete("one")
        assert view.group.lost == ()
        assert view.owned("me") == set(KEYS)

    def test_a_record_of_a_member_that_left_is_not_lost(self, view: View) -> None:
        view.put(record("one", "one", left=True, ttl_s=0))
        view.delete("one")
        assert view.group.lost == ()
        assert view.owned("me") == set(KEYS)

    def test_a_lost_member_gets_no_part_of_the_keys(self, view: View) -> None:
        view.put(record("one", "one", "me"))
        view.delete("one")
        assert view.group.living == MemberSet(["me"])

    def test_silence_begins_when_the_loss_is_noticed(self, view: View) -> None:
        view.put(record("one", "one", "me"))
        view.now = 5
        view.delete("one")
        view.prove(5 + DEAD_S - 1)
        assert view.group.lost == ("one",)

    def test_a_lost_member_is_forgotten_when_it_is_dead(self, view: View) -> None:
        view.put(record("one", "one", "me"))
        view.delete("one")
        view.prove(DEAD_S)
        assert view.group.lost == ()
        assert view.owned("me") == set(KEYS)

    def test_the_loss_is_noticed_once(self, view: View) -> None:
        view.put(record("one", "one", "me"))
        view.delete("one")
        view.now = 5
        view.group.look()
        view.prove(DEAD_S)
        assert view.group.lost == ()

    def test_another_invalid_record_restarts_the_silence(self, view: View) -> None:
        view.put(record("one", "one", "me"))
        view.write("one", b"?")
        view.now = 5
        view.write("one", b"!")
        view.prove(DEAD_S)
        assert view.group.lost == ("one",)

    def test_an_invalid_record_stays_known_after_its_writer_is_dead(self, view: View) -> None:
        view.put(record("one", "one", "me"))
        view.write("one", b"?")
        view.prove(DEAD_S)
        view.group.look()
        view.prove(DEAD_S + 1)
        assert view.group.lost == ()

    def test_a_deletion_of_an_unknown_record_claims_every_key(self, view: View) -> None:
        view.group.deleted("one")
        assert view.owned("me") == set()

    def test_a_deletion_of_an_unknown_record_is_forgotten_after_its_time_to_live(
        self, view: View
    ) -> None:
        view.group.deleted("one")
        view.prove(DEAD_S)
        assert view.owned("me") == set(KEYS)

    def test_a_deletion_of_the_own_record_claims_nothing(self, view: View) -> None:
        view.group.deleted("me")
        assert view.group.lost == ()

    def test_a_deletion_of_a_known_record_is_noticed_by_its_absence(self, view: View) -> None:
        view.put(record("one", "one", "me"))
        view.group.deleted("one")
        assert view.group.lost == ()

    def test_a_member_that_only_another_record_names_claims_every_key(self, view: View) -> None:
        view.put(record("one", "one", "two"))
        assert view.group.lost == ("two",)
        assert view.owned("me") == set()

    def test_a_member_that_has_a_record_and_is_named_by_another_is_not_lost(
        self, view: View
    ) -> None:
        view.put(record("two", "two"), record("one", "one", "two"))
        assert view.group.lost == ()

    def test_a_record_that_names_this_process_names_no_unknown_member(self, view: View) -> None:
        view.put(record("one", "one", "me"))
        assert view.group.lost == ()

    def test_a_named_member_is_no_longer_lost_when_its_record_appears(self, view: View) -> None:
        view.put(record("one", "one", "two"))
        view.put(record("two", "two"))
        assert view.group.lost == ()

    def test_a_named_member_claims_no_key_when_its_record_states_that_it_left(
        self, view: View
    ) -> None:
        view.put(record("one", "one", "two"))
        view.put(record("two", left=True), record("one", "one", "me", renewals=1))
        assert view.owned("me", "one") == given(("me", "one"), "me")

    def test_a_dead_member_that_another_record_names_stays_dead(self, view: View) -> None:
        view.put(record("two", "two"), record("one", "one", "two"))
        view.delete("two")
        view.now = 5
        view.put(record("one", "one", "two", renewals=1))
        view.prove(DEAD_S)
        view.group.look()
        assert view.group.lost == ()


class TestComplete:
    """A member needs proof that every member that may work has a record."""

    def test_a_suspected_member_claims_every_key(self, view: View) -> None:
        view.group.suspect()
        assert view.group.suspects
        assert view.owned("me") == set()

    def test_nothing_is_suspected_at_first(self, view: View) -> None:
        assert not view.group.suspects

    @pytest.mark.parametrize("name", ["me", "one"])
    def test_a_complete_record_ends_the_suspicion(self, view: View, name: str) -> None:
        view.group.suspect()
        view.put(record(name, complete=True))
        assert (view.group.complete, view.group.suspects) == (True, False)

    def test_a_record_without_proof_does_not_end_the_suspicion(self, view: View) -> None:
        view.group.suspect()
        view.put(record("me"), record("one"))
        assert (view.group.complete, view.group.suspects) == (False, True)

    def test_a_record_of_other_work_does_not_end_the_suspicion(self, view: View) -> None:
        view.group.suspect()
        view.put(record("one", complete=True, work=OTHERS))
        assert (view.group.complete, view.group.suspects) == (False, True)

    def test_a_record_that_is_lost_proves_nothing(self, view: View) -> None:
        view.put(record("one", "one", complete=True))
        view.delete("one")
        assert not view.group.complete

    def test_a_record_of_a_member_that_left_is_a_proof(self, view: View) -> None:
        view.put(record("one", complete=True, left=True, ttl_s=0))
        assert view.group.complete

    def test_the_suspicion_ends_when_a_suspected_member_must_be_dead(self, view: View) -> None:
        view.group.suspect()
        view.prove(DEAD_S)
        assert view.owned("me") == set(KEYS)


class TestStrangers:
    """A member with other work and the same name is a stranger."""

    def test_a_member_of_the_group_is_no_stranger(self, view: View) -> None:
        view.put(record("one"))
        assert view.group.stranger is None

    def test_a_living_stranger_is_named(self, view: View) -> None:
        view.put(stranger := record("one", work=OTHERS))
        assert view.group.stranger == stranger

    def test_a_dead_stranger_is_not_named(self, view: View) -> None:
        view.put(record("one", work=OTHERS))
        view.prove(DEAD_S)
        assert view.group.stranger is None

    def test_a_stranger_that_left_is_not_named(self, view: View) -> None:
        view.put(record("one", work=OTHERS, left=True, ttl_s=0))
        assert view.group.stranger is None

    def test_a_stranger_that_works_comes_first_and_then_the_oldest(self, view: View) -> None:
        older, newer = (
            record(name, work=OTHERS, since=f"2026-01-0{day}T00:00:00Z")
            for name, day in (("one", 1), ("two", 2))
        )
        view.put(newer, older)
        assert view.group.stranger == older
        view.put(works := msgspec.structs.replace(newer, members=("two",)))
        assert view.group.stranger == works


class TestProofDue:
    def test_no_proof_is_due_without_others(self, view: View) -> None:
        assert view.group.proof_due(0) == math.inf

    def test_a_proof_is_due_when_the_next_member_must_be_dead(self, view: View) -> None:
        view.put(record("one"))
        view.now = 5
        view.put(record("two"))
        assert view.group.proof_due(0) == DEAD_S

    def test_a_write_when_the_proof_is_due_is_the_proof(self, view: View) -> None:
        view.put(record("one"))
        view.now = 5
        view.put(record("two"))
        assert view.group.proof_due(DEAD_S) == 5 + DEAD_S

    def test_no_proof_is_due_for_a_dead_member(self, view: View) -> None:
        view.put(record("one"))
        view.prove(DEAD_S)
        assert view.group.proof_due(0) == math.inf


class TestAssignment:
    def test_the_members_divide_the_keys(self, view: View) -> None:
        view.put(record("one", "me", "one"))
        assert view.owned("me", "one") == given(("me", "one"), "me")

    def test_a_key_that_another_record_claims_does_not_belong_to_this_process(
        self, view: View
    ) -> None:
        view.put(record("one", "one"))
        assert view.owned("me", "one") == set()

    def test_a_member_that_claims_no_key_takes_none(self, view: View) -> None:
        view.put(record("one"))
        assert view.owned("me") == set(KEYS)

    def test_a_claim_of_a_dead_member_does_not_count(self, view: View) -> None:
        view.put(record("one", "one"))
        view.prove(DEAD_S)
        assert view.owned("me") == set(KEYS)

    def test_a_key_belongs_to_this_process_if_all_of_its_sets_give_it(self, view: View) -> None:
        assignment = view.group.assignment(MemberSet(["me", "one"]), MemberSet(["me", "two"]))
        owned = {key for key in KEYS if assignment.has(key)}
        assert owned == given(("me", "one"), "me") & given(("me", "two"), "me")

    def test_a_set_without_this_process_gives_it_no_key(self, view: View) -> None:
        assert view.owned("one") == set()

    def test_only_the_widest_sets_are_kept(self, view: View) -> None:
        wide, narrow = MemberSet(["me", "one"]), MemberSet(["me"])
        assert view.group.assignment(narrow, wide, wide).own == (wide,)

    def test_a_claim_that_gives_this_process_its_keys_is_not_kept(self, view: View) -> None:
        view.put(record("one", "me", "one"), record("two", "two"))
        claims = view.group.assignment(MemberSet(["me", "one"])).claims
        assert set(claims) == {"two"}

    def test_the_member_that_claims_a_key_is_named(self, view: View) -> None:
        view.put(record("one", "one", "two"), record("two", "one", "two"))
        owners = {name: given(("one", "two"), name) for name in ("one", "two")}
        assert {key: view.group.whose(key) for key in KEYS} == {
            key: name for name, keys in owners.items() for key in keys
        }

    def test_a_key_that_nobody_claims_has_no_name(self, view: View) -> None:
        view.put(record("one"))
        assert view.group.whose("k1") is None

    def test_an_illegal_key_is_no_record(self, view: View) -> None:
        view.cache.apply(IllegalKey("?!", 99))
        view.group.look()
        assert view.group.living == MemberSet(["me"])


def shared(*own: tuple[str, ...], **claims: tuple[str, ...]) -> SharedAssignment:
    claimed = {name: MemberSet(members) for name, members in claims.items()}
    return SharedAssignment("me", tuple(map(MemberSet, own)), claimed)


class TestSharedAssignments:
    def test_assignments_of_the_same_members_and_claims_are_equal(self) -> None:
        assignment, equal_assignment = (shared(("me", "one"), two=("two",)) for _ in range(2))
        assert assignment == equal_assignment
        assert hash(assignment) == hash(equal_assignment)

    @pytest.mark.parametrize(
        "different", [shared(("me",), two=("two",)), shared(("me", "one")), shared(), ALL]
    )
    def test_other_assignments_differ(self, different: object) -> None:
        assert shared(("me", "one"), two=("two",)) != different

    def test_assignments_of_two_processes_differ(self) -> None:
        assert SharedAssignment("me", (), {}) != SharedAssignment("one", (), {})

    @pytest.mark.parametrize(
        ("assignment", "surrounding", "within"),
        [
            (shared(("me", "one")), shared(("me",)), True),
            (shared(("me",)), shared(("me", "one")), False),
            (shared(("me", "one")), shared(("me", "one")), True),
            (shared(("me", "one")), shared(("one",)), False),
            (shared(("me",)), shared(("me",), two=("two",)), False),
            (shared(("me",), two=("two",)), shared(("me",), two=("two",)), True),
            (shared(("me",), two=("two", "x")), shared(("me",), two=("two",)), False),
            (shared(("me",), two=("two",)), shared(("me",)), True),
            (shared(("me", "two")), shared(("me",), two=("me", "two")), True),
            (shared(("me", "one"), ("me", "two")), shared(("me", "two")), True),
        ],
    )
    def test_an_assignment_is_within_another_if_its_keys_are_known_to_be(
        self, assignment: SharedAssignment, surrounding: SharedAssignment, *, within: bool
    ) -> None:
        assert assignment.within(surrounding) == within

    @pytest.mark.parametrize("different", [ALL, NONE])
    def test_an_assignment_is_not_known_to_be_within_one_of_another_type(
        self, different: SharedAssignment
    ) -> None:
        assert not shared(("me",)).within(different)

    def test_the_claim_of_a_member_that_its_own_set_names_takes_no_key(self) -> None:
        assignment = shared(("me", "one"), one=("me", "one"))
        assert {key for key in KEYS if assignment.has(key)} == given(("me", "one"), "me")

    def test_the_claim_of_another_process_of_this_name_takes_its_keys(self) -> None:
        assignment = shared(("me",), me=("me",))
        assert not any(map(assignment.has, KEYS))


class TestRebalance:
    @pytest.fixture
    def rebalance(self) -> Rebalance:
        return Rebalance("me", MemberSet(["me"]), MemberSet(["me", "one"]))

    def test_a_rebalance_is_not_drained_at_first(self, rebalance: Rebalance) -> None:
        assert not rebalance.drained

    def test_keys_that_others_get_are_given_up(self, rebalance: Rebalance) -> None:
        gives_up = {key for key in KEYS if rebalance.gives_up(key)}
        assert gives_up == given(("me", "one"), "one")

    def test_a_key_of_another_member_is_not_given_up(self) -> None:
        rebalance = Rebalance("me", MemberSet(["one"]), MemberSet(["one", "two"]))
        assert not any(map(rebalance.gives_up, KEYS))

    def test_the_record_names_the_next_members(self, rebalance: Rebalance) -> None:
        assert rebalance.published(7) == ("me", "one")

    def test_a_rebalance_is_done_when_the_cache_has_the_first_record_with_the_members(
        self, rebalance: Rebalance
    ) -> None:
        rebalance.published(7)
        rebalance.published(8)
        assert rebalance.done(record("me", "me", "one", renewals=7))

    def test_a_rebalance_is_not_done_without_a_record(self, rebalance: Rebalance) -> None:
        rebalance.published(7)
        assert not rebalance.done(None)

    def test_a_rebalance_is_not_done_with_an_older_record(self, rebalance: Rebalance) -> None:
        rebalance.published(7)
        assert not rebalance.done(record("me", "me", "one", renewals=6))

    def test_a_rebalance_is_not_done_with_a_record_of_other_members(
        self, rebalance: Rebalance
    ) -> None:
        rebalance.published(7)
        assert not rebalance.done(record("me", "me", renewals=7))

    def test_a_rebalance_is_not_done_before_the_members_are_published(
        self, rebalance: Rebalance
    ) -> None:
        assert not rebalance.done(record("me", "me", "one", renewals=7))
