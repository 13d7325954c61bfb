import asyncio


async def test_an_hour_takes_no_time() -> None:
    loop = asyncio.get_running_loop()
    await asyncio.sleep(3600)
    assert loop.time() == 3600
