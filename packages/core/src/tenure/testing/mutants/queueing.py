"""Stores whose queue is none, or grants what it should not."""

import asyncio

from tenure.store import Acquired, Held
from tenure.testing.contract import queueing
from tenure.testing.mutants.model import Place, Row, SoundStore
from tenure.testing.mutants.museum import Wing

__all__ = ["WING"]

WING = Wing()


@WING.mutant(queueing.free_key_is_taken, queueing.turns_are_taken_alone)
class StandsBeforeAFreeKey(SoundStore):
    """acquire_queued() takes a place whether or not somebody holds the key."""

    def take_or_stand(self, key: str, owner: str, ttl_ms: int, place_ms: int) -> Acquired | Held:
        row = self.find(key)
        if row is None:
            self.stand(key, Place(owner, ttl_ms, self.expiry(place_ms)))
            return Held()
        return super().take_or_stand(key, owner, ttl_ms, place_ms)


@WING.mutant(queueing.order_of_arrival, queueing.place_is_kept, queueing.repeat_keeps_the_place)
class ServesTheLast(SoundStore):
    """A release grants the lock to whoever came last."""

    def head(self, queue: list[Place]) -> Place:
        return queue.pop()


@WING.mutant(
    queueing.third_does_not_barge,
    queueing.order_of_arrival,
    queueing.releaser_does_not_barge,
    queueing.plain_waiter_is_served,
    queueing.waiter_hears,
    queueing.deaf_waiter_keeps_its_place,
    queueing.ttl_from_the_grant,
    queueing.granted_owner_owns,
    queueing.leaver_is_skipped,
    queueing.old_place_is_skipped,
    queueing.place_is_kept,
    queueing.repeat_keeps_the_place,
    queueing.repeat_prolongs_the_place,
    queueing.queues_are_exact,
    queueing.turns_are_taken_alone,
)
class FreesTheKey(SoundStore):
    """A release frees the lock, and only wakes the head of the queue, which asks as everybody does."""

    def hand_on(self, key: str, row: Row) -> None:
        del row
        for place in self.queue(key):
            for hearer in self.server.hearers.pop((key, place.owner), ()):
                hearer.set_result(Acquired(1))


@WING.mutant(queueing.releaser_does_not_barge)
class LetsTheLastHolderIn(SoundStore):
    """Whoever released a lock last gets it back, as long as the one who was granted it has not asked."""

    last = ""

    def free(self, key: str, owner: str) -> bool:
        freed = super().free(key, owner)
        if freed:
            self.last = owner
        return freed

    def take(self, key: str, owner: str, ttl_ms: int) -> Acquired | Held:
        row = self.find(key)
        if row is not None and owner == self.last and self.is_live(row):
            return self.grant(key, row, owner, ttl_ms)
        return super().take(key, owner, ttl_ms)


@WING.mutant(
    queueing.plain_waiter_is_served,
    queueing.granted_owner_owns,
    queueing.leaver_is_skipped,
    queueing.old_place_is_skipped,
    queueing.repeat_keeps_the_place,
    queueing.turns_are_taken_alone,
)
class KeepsPollersOut(SoundStore):
    """A key that was queued for is taken through the queue alone, for as long as it is free."""

    async def acquire(self, key: str, owner: str, ttl_ms: int) -> Acquired | Held:
        row = self.find(key)
        if row is not None and row.owner is None and f"queued {key}" in self.server.rows:
            return Held()
        return await super().acquire(key, owner, ttl_ms)

    def stand(self, key: str, place: Place) -> None:
        super().stand(key, place)
        self.server.rows[f"queued {key}"] = Row("", None, 0, 0.0, None)


@WING.mutant(queueing.expired_lock_grants_nobody)
class GrantsTheExpired(SoundStore):
    """A lock that has expired goes to the head of its queue, as a released one does."""

    def end_queue(self, key: str) -> None:
        row = self.find(key)
        if row is not None and row.owner is not None and not self.is_live(row):
            self.hand_on(key, row)


@WING.mutant(queueing.expired_lock_grants_nobody)
class KeepsTheQueueOfTheExpired(SoundStore):
    """Whoever takes a lock that has expired takes its queue over."""

    def end_queue(self, key: str) -> None:
        del key


@WING.mutant(queueing.expired_lock_grants_nobody)
class GrantsByALateRelease(SoundStore):
    """The release of a lock that has expired grants it to the head of its queue."""

    def free(self, key: str, owner: str) -> bool:
        row = self.find(key)
        if row is not None and row.owner == owner and not self.is_live(row):
            self.hand_on(key, row)
            return False
        return super().free(key, owner)


@WING.mutant(queueing.waiter_hears)
class TellsNobody(SoundStore):
    """A release grants the lock, and tells nobody."""

    async def granted(self, key: str, owner: str) -> Acquired:
        del key, owner
        never: asyncio.Future[Acquired] = asyncio.get_running_loop().create_future()
        return await never


@WING.mutant(queueing.waiter_hears)
class TellsThoseWhoListen(SoundStore):
    """A grant that came before anybody listened is told to nobody."""

    async def granted(self, key: str, owner: str) -> Acquired:
        hearer: asyncio.Future[Acquired] = asyncio.get_running_loop().create_future()
        self.server.hearers[key, owner].append(hearer)
        return await hearer


@WING.mutant(queueing.waiter_hears)
class TellsTheTokenBefore(SoundStore):
    """The message of a grant holds the token of the lock before."""

    def tell(self, key: str, owner: str, granted: Acquired) -> None:
        super().tell(key, owner, Acquired(granted.token - 1, granted.after))


@WING.mutant(queueing.deaf_waiter_keeps_its_place)
class LeavesWithItsEars(SoundStore):
    """A waiter that stops to listen is taken out of the queue, as a dropped subscription would."""

    async def granted(self, key: str, owner: str) -> Acquired:
        try:
            return await super().granted(key, owner)
        except asyncio.CancelledError:
            self.leave(key, owner)
            raise


@WING.mutant(queueing.token_grows, queueing.waiter_hears)
class GrantsUnderTheOldToken(SoundStore):
    """A grant keeps the token of the lock that was released."""

    def hand_on(self, key: str, row: Row) -> None:
        super().hand_on(key, row)
        new = self.find(key)
        if new is not None:
            new.token = row.token


@WING.mutant(queueing.token_grows, queueing.waiter_hears)
class DrawsWhenAsked(SoundStore):
    """The token of a grant is drawn when its owner asks for the first time, and for the second."""

    def repeat(self, row: Row, ttl_ms: int) -> Acquired:
        if row.after == "released" and row.key in self.server.queues:
            row.token += 1
        return super().repeat(row, ttl_ms)


@WING.mutant(queueing.token_grows, queueing.waiter_hears)
class SaysThatItExpired(SoundStore):
    """A grant says that the lock before had expired."""

    def hand_on(self, key: str, row: Row) -> None:
        super().hand_on(key, row)
        new = self.find(key)
        if new is not None and new.owner is not None:
            new.after = "expired"


@WING.mutant(queueing.ttl_from_the_grant)
class CountsFromThePlace(SoundStore):
    """The ttl of a grant began when its place was taken."""

    def stand(self, key: str, place: Place) -> None:
        super().stand(key, place)
        self.server.rows[f"ends {key} {place.owner}"] = Row("", None, 0, self.expiry(place.ttl_ms), None)

    def hand_on(self, key: str, row: Row) -> None:
        super().hand_on(key, row)
        new = self.find(key)
        if new is not None and new.owner is not None:
            new.expires_at = self.server.rows[f"ends {key} {new.owner}"].expires_at


@WING.mutant(queueing.ttl_from_the_grant)
class InheritsTheExpiry(SoundStore):
    """A grant lives for what was left of the lock before it."""

    def hand_on(self, key: str, row: Row) -> None:
        super().hand_on(key, row)
        new = self.find(key)
        if new is not None and new.owner is not None:
            new.expires_at = row.expires_at


@WING.mutant(
    queueing.granted_owner_owns,
    queueing.order_of_arrival,
    queueing.releaser_does_not_barge,
    queueing.plain_waiter_is_served,
    queueing.token_grows,
    queueing.leaver_is_skipped,
    queueing.repeat_keeps_the_place,
    queueing.turns_are_taken_alone,
)
class GrantsItAgain(SoundStore):
    """Who is granted the lock stays at the head of the queue."""

    def hand_on(self, key: str, row: Row) -> None:
        before = list(self.queue(key))
        super().hand_on(key, row)
        granted = [place for place in before if place.owner == self.server.rows[self.name(key)].owner]
        self.queue(key)[:0] = granted


@WING.mutant(queueing.waiter_owns_nothing, queueing.third_does_not_barge)
class RenewsForWaiters(SoundStore):
    """renew() by a waiter keeps the holder's lock alive, and says yes."""

    def extend(self, key: str, owner: str, ttl_ms: int) -> bool:
        row = self.find(key)
        if row is not None and any(place.owner == owner for place in self.queue(key)):
            return super().extend(key, row.owner or owner, ttl_ms)
        return super().extend(key, owner, ttl_ms)


@WING.mutant(queueing.waiter_owns_nothing)
class SaysThatItReleased(SoundStore):
    """release() by a waiter that leaves the queue answers True."""

    def free(self, key: str, owner: str) -> bool:
        waited = any(place.owner == owner for place in self.queue(key))
        return super().free(key, owner) or waited


@WING.mutant(queueing.waiter_owns_nothing, queueing.leaver_is_skipped, queueing.turns_are_taken_alone)
class FreesForWaiters(SoundStore):
    """release() by a waiter frees the lock that it waits for."""

    def free(self, key: str, owner: str) -> bool:
        row = self.find(key)
        if row is not None and any(place.owner == owner for place in self.queue(key)):
            self.leave(key, owner)
            super().free(key, row.owner or owner)
            return False
        return super().free(key, owner)


@WING.mutant(queueing.leaver_is_skipped, queueing.turns_are_taken_alone)
class KeepsWhoLeft(SoundStore):
    """release() by a waiter leaves its place in the queue."""

    def leave(self, key: str, owner: str) -> None:
        del key, owner


@WING.mutant(queueing.leaver_is_skipped)
class LosesTheQueueWithWhoLeft(SoundStore):
    """release() by a waiter drops the queue."""

    def leave(self, key: str, owner: str) -> None:
        if any(place.owner == owner for place in self.queue(key)):
            self.queue(key).clear()


@WING.mutant(queueing.old_place_is_skipped, queueing.repeat_prolongs_the_place)
class KeepsPlacesForEver(SoundStore):
    """A place lasts until it is granted something."""

    def is_kept(self, place: Place) -> bool:
        del place
        return True


@WING.mutant(queueing.old_place_is_skipped, queueing.repeat_prolongs_the_place)
class StopsAtAnOldPlace(SoundStore):
    """A place that has run out is not skipped: the lock is nobody's, and those behind it wait on."""

    def hand_on(self, key: str, row: Row) -> None:
        queue = self.queue(key)
        if queue and self.is_kept(queue[0]):
            super().hand_on(key, row)


@WING.mutant(queueing.place_is_kept)
class CutsPlaces(SoundStore):
    """A place is kept for a third of its time."""

    def stand(self, key: str, place: Place) -> None:
        place.kept_until -= (place.kept_until - self.now()) * 2 / 3
        super().stand(key, place)


@WING.mutant(queueing.repeat_keeps_the_place)
class GoesToTheEnd(SoundStore):
    """A waiter that asks again goes to the end of the queue."""

    def stand(self, key: str, place: Place) -> None:
        self.leave(key, place.owner)
        super().stand(key, place)


@WING.mutant(queueing.repeat_keeps_the_place, queueing.repeat_prolongs_the_place)
class StandsTwice(SoundStore):
    """A waiter that asks again has another place."""

    def stand(self, key: str, place: Place) -> None:
        self.queue(key).append(place)


@WING.mutant(queueing.repeat_prolongs_the_place)
class KeepsTheFirstTime(SoundStore):
    """A waiter that asks again has its place for the time that it asked for first."""

    def stand(self, key: str, place: Place) -> None:
        if all(other.owner != place.owner for other in self.queue(key)):
            super().stand(key, place)


@WING.mutant(queueing.queues_are_exact)
class QueuesInAnyCase(SoundStore):
    """Keys that differ in case alone share a queue."""

    def queue_name(self, key: str) -> str:
        return key.casefold()


@WING.mutant(queueing.arguments_are_refused)
class TakesAnyPlace(SoundStore):
    """The time of a place is taken for checked."""

    def check_place(self, place_ms: int) -> None:
        del place_ms

    def take_or_stand(self, key: str, owner: str, ttl_ms: int, place_ms: int) -> Acquired | Held:
        place_ms = place_ms if type(place_ms) is int else 1
        return super().take_or_stand(key, owner, ttl_ms, place_ms)


@WING.mutant(queueing.turns_are_taken_alone)
class GrantsInTwoSteps(SoundStore):
    """A release frees the lock, and grants it a moment later, whoever has it by then."""

    async def release(self, key: str, owner: str) -> bool:
        queue, self.queue(key)[:] = list(self.queue(key)), []
        freed = await super().release(key, owner)
        self.queue(key)[:0] = [place for place in queue if freed or place.owner != owner]
        if freed:
            await self.travel()
            self.hand_on(key, self.server.rows[self.name(key)])
        return freed
