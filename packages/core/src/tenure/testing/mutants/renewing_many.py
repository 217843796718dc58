"""Stores that renew many in another way than one."""

import asyncio
from collections import defaultdict
from collections.abc import Sequence

from tenure.store import Claim
from tenure.testing.contract import races, renewing_many
from tenure.testing.mutants.model import Server, SoundStore
from tenure.testing.mutants.museum import Wing

__all__ = ["WING"]

WING = Wing()

Answers = Sequence[bool | None]


@WING.mutant(renewing_many.answers_are_in_place, renewing_many.a_thousand_claims)
class AnswersInTheOrderOfKeys(SoundStore):
    """The answers come in the order in which the server sorted the keys."""

    async def renew_many(self, claims: Sequence[Claim]) -> Answers:
        return await super().renew_many(sorted(claims, key=lambda claim: claim.key))


@WING.mutant(
    renewing_many.answers_are_in_place,
    renewing_many.refusal_stays_alone,
    renewing_many.one_key_twice,
    renewing_many.a_thousand_claims,
)
class StopsAtTheFirstRefusal(SoundStore):
    """After a refusal, the rest is refused too."""

    async def renew_many(self, claims: Sequence[Claim]) -> Answers:
        answers: list[bool | None] = []
        for claim in claims:
            answers.append(False not in answers and await self.renew(claim.key, claim.owner, claim.ttl_ms))
        return answers


@WING.mutant(
    renewing_many.refusal_stays_alone,
    renewing_many.answers_are_in_place,
    renewing_many.one_key_twice,
    renewing_many.a_thousand_claims,
)
class RollsBackAll(SoundStore):
    """All renewals are one transaction: a refusal undoes it, and every claim is refused."""

    async def renew_many(self, claims: Sequence[Claim]) -> Answers:
        mine = [self.is_mine(self.find(claim.key), claim.owner) for claim in claims]
        answers = await super().renew_many(claims)
        return answers if all(mine) else [False] * len(answers)


@WING.mutant(
    renewing_many.a_thousand_claims,
    renewing_many.answers_are_in_place,
    renewing_many.refusal_stays_alone,
    renewing_many.one_key_twice,
)
class LeavesRefusalsOut(SoundStore):
    """The rows that were updated come back, and nothing for those that were not."""

    async def renew_many(self, claims: Sequence[Claim]) -> Answers:
        return [answer for answer in await super().renew_many(claims) if answer]


@WING.mutant(renewing_many.each_has_its_ttl)
class TakesOneTtlForAll(SoundStore):
    """The ttl of the first claim is everybody's."""

    async def renew_many(self, claims: Sequence[Claim]) -> Answers:
        return await super().renew_many([Claim(claim.key, claim.owner, claims[0].ttl_ms) for claim in claims])


@WING.mutant(renewing_many.each_has_its_ttl)
class ConfirmsManyWithoutWriting(SoundStore):
    """Many renewals are looked at, and none is written."""

    async def renew_many(self, claims: Sequence[Claim]) -> Answers:
        for claim in claims:
            self.check_arguments(claim.key, claim.owner, claim.ttl_ms)
        return [self.is_mine(self.find(claim.key), claim.owner) for claim in claims]


@WING.mutant(renewing_many.refusal_stays_alone)
class RenewsManyByKeyAlone(SoundStore):
    """Many renewals go by key, and the answers by owner."""

    async def renew_many(self, claims: Sequence[Claim]) -> Answers:
        answers = [self.is_mine(self.find(claim.key), claim.owner) for claim in claims]
        for claim in claims:
            self.check_arguments(claim.key, claim.owner, claim.ttl_ms)
            row = self.find(claim.key)
            if row is not None and self.is_live(row):
                row.expires_at = self.expiry(claim.ttl_ms)
        return answers


@WING.mutant(renewing_many.one_key_twice)
class AnswersByKey(SoundStore):
    """The answers are looked up by key: the last claim on a key answers for all."""

    async def renew_many(self, claims: Sequence[Claim]) -> Answers:
        answers = await super().renew_many(claims)
        by_key = {claim.key: answer for claim, answer in zip(claims, answers, strict=True)}
        return [by_key[claim.key] for claim in claims]


@WING.mutant(renewing_many.no_claims)
class ChokesOnNoClaims(SoundStore):
    """No claims make a statement without values, which is a syntax error."""

    async def renew_many(self, claims: Sequence[Claim]) -> Answers:
        if not claims:
            raise RuntimeError("syntax error at end of input")
        return await super().renew_many(claims)


@WING.mutant(renewing_many.a_thousand_claims)
class TakesTheFirst500(SoundStore):
    """A statement takes 500 claims, and the rest is told to be lost."""

    async def renew_many(self, claims: Sequence[Claim]) -> Answers:
        answers = await super().renew_many(claims[:500])
        return [*answers, *[False] * (len(claims) - 500)]


@WING.mutant(
    renewing_many.answers_are_in_place,
    renewing_many.each_has_its_ttl,
    renewing_many.refusal_stays_alone,
    renewing_many.one_key_twice,
    renewing_many.a_thousand_claims,
)
class CanNeverTell(SoundStore):
    """Every answer is "could not tell", and the engine renews one by one after all."""

    async def renew_many(self, claims: Sequence[Claim]) -> Answers:
        return [None for _ in await super().renew_many(claims)]


@WING.mutant(renewing_many.bad_claims_are_refused)
class TrustsClaims(SoundStore):
    """Claims are taken for checked."""

    async def renew_many(self, claims: Sequence[Claim]) -> Answers:
        await self.travel()
        return [self.extend(claim.key, claim.owner, claim.ttl_ms) for claim in claims]


class _LockingServer(Server):
    locks: "defaultdict[str, asyncio.Lock]"


@WING.mutant(races.opposite_orders_end)
class LocksRowsAsTheyCome(SoundStore):
    """Many renewals lock one row after the other in the order of the claims, and hold on to each."""

    server_kind = _LockingServer

    async def renew_many(self, claims: Sequence[Claim]) -> Answers:
        server = self.server
        assert isinstance(server, _LockingServer)
        if not hasattr(server, "locks"):
            server.locks = defaultdict(asyncio.Lock)
        taken: list[asyncio.Lock] = []
        try:
            for claim in claims:
                await self.travel()
                if claim.key not in {one.key for one in claims[: claims.index(claim)]}:
                    await server.locks[claim.key].acquire()
                    taken.append(server.locks[claim.key])
            return await super().renew_many(claims)
        finally:
            for lock in taken:
                lock.release()
