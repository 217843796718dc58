"""An instance is paused."""

import asyncio

from tenure import on_one_instance
from tenure.jobs import job_lease
from tenure.testing import instances


class Ledger:
    """A resource that compares tokens: it takes no write that is older than the newest that it has seen."""

    def __init__(self) -> None:
        self.seen = 0
        self.written: list[str] = []

    def write(self, text: str, *, token: int) -> bool:
        if token < self.seen:
            return False
        self.seen = token
        self.written.append(text)
        return True


ledger = Ledger()


@on_one_instance("tutorial:fencing")
async def export() -> int:
    lease = job_lease("tutorial:fencing")
    assert lease is not None
    assert ledger.write("a batch", token=lease.token)
    return lease.token


async def main() -> None:
    async with instances(2, ttl="30s") as shops:
        old = await shops[0].call(export)
        assert old is not None
        shops[0].pause()
        await shops.advance("31s")
        new = await shops[1].call(export)
        assert new is not None
        assert new > old
        assert not ledger.write("what was on its way", token=old)  # refused
        await shops[0].resume()
        assert await shops[0].call(export) is None  # it has learnt that it owns nothing


asyncio.run(main())
assert ledger.written == ["a batch", "a batch"]
