"""Property tests of sharding: no key ever has two members, and each key ends with one member.

Members join, leave and crash. Their connections to the bucket of leases fail, lag, drop responses
or deliver writes late. Records are deleted, purged and overwritten, and the bucket is recreated.
"""

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

from hypothesis import example, given
from hypothesis import strategies as st

from natsctl.testing import in_virtual_time
from tests.support.controllers.sharding_group import TTL_S, Member, Town
from tests.support.eventually import eventually

KEYS = [f"k{number}" for number in range(24)]
MEMBERS_MAX = 5

member_number = st.integers(0, MEMBERS_MAX - 1)
events = st.one_of(
    st.tuples(st.just("join"), st.sampled_from([0.96, 1.0, 1.04])),
    st.tuples(st.just("leave"), member_number),
    st.tuples(st.just("kill"), member_number),
    st.tuples(st.sampled_from(["cut", "deaf", "unanswered", "late"]), member_number),
    st.tuples(st.sampled_from(["cut", "deaf", "unanswered", "late"]), member_number),
    st.tuples(
        st.just("delay"), st.tuples(member_number, st.sampled_from([0.0, 0.3, 1.0, 4.0, 9.0]))
    ),
    st.tuples(st.just("lag"), st.tuples(member_number, st.sampled_from([0.0, 0.2, 1.0]))),
    st.tuples(st.sampled_from(["delete", "purge", "garbage"]), member_number),
    st.tuples(st.just("recreate"), st.none()),
    st.tuples(st.just("put"), st.sampled_from(KEYS)),
)
pauses = st.sampled_from([0.0, 0.1, 0.7, 2.0, 5.0, 9.0, 13.0])


def in_time(test: Callable[..., Coroutine[Any, Any, None]]) -> Callable[..., None]:
    return in_virtual_time(test)


@given(
    size=st.integers(1, 3),
    steps=st.lists(st.tuples(events, pauses), max_size=15),
    pause_s=st.sampled_from([0.1, 1.0, 6.0]),
)
@example(  # the bucket is recreated twice, and a member that joins late knows no lost member
    size=3,
    steps=[
        (("cut", 4), 0.0),
        (("join", 0.96), 9.0),
        (("recreate", None), 13.0),
        (("cut", 4), 0.0),
        (("recreate", None), 1.0),
    ],
    pause_s=1.0,
)
@example(  # a member that is cut off does not notice that the bucket was recreated
    size=3,
    steps=[
        (("put", "k0"), 5.0),
        (("cut", 1), 0.1),
        (("recreate", None), 2.0),
        (("join", 1.0), 5.0),
    ],
    pause_s=1.0,
)
@example(size=1, steps=[(("recreate", None), 0.1), (("recreate", None), 0.0)], pause_s=0.1)
@in_time
async def test_no_key_has_two_members_and_each_key_ends_with_one(
    size: int, steps: list[tuple[tuple[str, Any], float]], pause_s: float
) -> None:
    town = Town()
    await town.put(*KEYS)
    first_runs = FirstRuns()
    for number in range(size):
        town.join(f"m{number}", pause_s=pause_s, again_s=1.0, first_run=first_runs.of)
    for (action, argument), then_s in steps:
        await apply_step(town, first_runs, action, argument, pause_s)
        await asyncio.sleep(then_s)
        town.check()
    for member in town.members:
        heal(member)
    living = living_members(town) or [
        town.join("last", pause_s=pause_s, again_s=1.0, first_run=first_runs.of)
    ]
    await asyncio.sleep(TTL_S)  # each member notices the last fault at its next renewal

    async def each_key_stays_with_one() -> bool:
        """Return whether the keys are shared, and stay so while each of them is synced again.

        A fault may be noticed later, by a write that was on its way when the connection healed.
        """
        if not town.shared(*living):
            return False
        since, shares = len(town.floor.visits), [member.keys for member in living]
        await asyncio.sleep(4 * (pause_s + 1.0))
        assert [member.keys for member in living] == shares
        assert town.floor.workers(since) == {
            key: {member.who} for member in living for key in member.keys
        }
        return True

    await eventually(each_key_stays_with_one, within_s=20 * TTL_S, every_s=0.5)
    town.check()
    await town.close()


class FirstRuns:
    """A record outside of the leases: whether the controller has run before."""

    def __init__(self) -> None:
        self.ran = False

    async def of(self, _name: str) -> bool:
        ran, self.ran = self.ran, True
        return not ran


def living_members(town: Town) -> list[Member]:
    return [member for member in town.members if not member.leaving and not member.task.done()]


async def apply_step(
    town: Town, first_runs: "FirstRuns", action: str, argument: Any, pause_s: float
) -> None:
    living = living_members(town)
    member = living[argument % len(living)] if isinstance(argument, int) and living else None
    match action:
        case "join" if len(living) < MEMBERS_MAX:
            town.join(
                f"m{len(town.members)}",
                pause_s=pause_s,
                again_s=1.0,
                rate=argument,
                first_run=first_runs.of,
            )
        case "leave" if member is not None:
            member.leave()
        case "kill" if member is not None:
            await member.kill()
        case "cut" | "deaf" | "unanswered" | "late" if member is not None:
            setattr(member.way, action, not getattr(member.way, action))
        case "delay" | "lag" if living:
            number, seconds = argument
            setattr(living[number % len(living)].way, f"{action}_s", seconds)
        case "delete" | "purge" if town.leases.keys():
            key = town.leases.keys()[argument % len(town.leases.keys())]
            await town.leases.delete(key, purge=action == "purge")
        case "garbage" if town.leases.keys():
            key = town.leases.keys()[argument % len(town.leases.keys())]
            stored = await town.leases.get(key)
            value = b'{"holder": "x", "since": "", "ttlS": -1}' if len(stored.value) % 2 else b"?"
            await town.leases.update(key, value, revision=stored.revision)
        case "recreate":
            town.leases.recreate()
        case "put":
            await town.touch(argument, action)
        case _:
            pass


def heal(member: Member) -> None:
    way = member.way
    way.cut = way.deaf = way.unanswered = way.late = False
    way.delay_s = way.lag_s = 0.0
