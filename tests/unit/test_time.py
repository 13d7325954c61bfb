"""Async tests run in virtual time."""

import asyncio


async def test_a_sleep_of_an_hour_takes_no_real_time() -> None:
    loop = asyncio.get_running_loop()
    await asyncio.sleep(3600)
    assert loop.time() == 3600
