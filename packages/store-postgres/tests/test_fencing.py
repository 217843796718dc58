"""Fenced writes: `fence` beside the data, `lease_guard` in the caller's own transaction."""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import asyncpg
import pytest
from sqlalchemy import BigInteger, Column, Integer, MetaData, Numeric, SmallInteger, Table, Text, select, update
from sqlalchemy.dialects.postgresql import insert
from sqlalchemy.exc import DBAPIError
from sqlalchemy.ext.asyncio import AsyncEngine, AsyncSession, async_scoped_session, async_sessionmaker
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column

from tenure.errors import ConfigurationError, LeaseLostError, LossReason
from tenure.store import MAX_TOKEN, Acquired, Held
from tenure_postgres import Fence, PostgresLockStore, create_schema_sql, fence, lease_guard

Owner = Callable[[], str]
MakeEngine = Callable[..., AsyncEngine]


class Base(DeclarativeBase):
    pass


class Product(Base):
    __tablename__ = "products"
    id: Mapped[int] = mapped_column(Integer, primary_key=True)
    in_stock: Mapped[int]
    fenced_by: Mapped[int | None] = mapped_column("stock_token", BigInteger)


products = Product.__table__


@dataclass
class Signal:
    """What a lease's `lost` is to the fence."""

    key: str
    token: int
    reason: LossReason | None = None

    def raise_if_set(self) -> None:
        if self.reason is not None:
            raise LeaseLostError(self.key, self.token, self.reason)


@dataclass
class Handle:
    """A lease as an engine gives it: the store alone has none."""

    key: str
    token: int
    lost: Signal = field(init=False)

    def __post_init__(self) -> None:
        self.lost = Signal(self.key, self.token)

    def raise_unless_held(self) -> None:
        self.lost.raise_if_set()


@pytest.fixture
async def stock(engine: AsyncEngine) -> AsyncEngine:
    async with engine.begin() as connection:
        await connection.run_sync(Base.metadata.create_all)
        await connection.execute(insert(products).values(id=7, in_stock=1))
    return engine


async def read(engine: AsyncEngine) -> tuple[int, int | None]:
    async with engine.connect() as connection:
        row = (await connection.execute(select(products.c.in_stock, products.c.stock_token))).one()
    return row[0], row[1]


async def write(engine: AsyncEngine, in_stock: int, lease_or_token: Any) -> int:
    guarded = fence(products.c.stock_token, lease_or_token)
    statement = guarded.guard(update(products).where(products.c.id == 7).values(in_stock=in_stock))
    async with engine.begin() as connection:
        return (await connection.execute(statement)).rowcount


# ---------------------------------------------------------------------------------------------------------- fence


async def test_a_late_write_of_a_paused_holder_is_refused(stock: AsyncEngine) -> None:
    paused, current = Handle("stock", 100), Handle("stock", 101)
    assert await write(stock, 5, paused) == 1
    assert await write(stock, 9, current) == 1
    assert await write(stock, 4, paused) == 0
    assert await read(stock) == (9, 101)


async def test_a_holder_writes_the_same_row_more_than_once(stock: AsyncEngine) -> None:
    lease = Handle("stock", 100)
    assert [await write(stock, number, lease) for number in (2, 3, 4)] == [1, 1, 1]
    assert await read(stock) == (4, 100)


async def test_planted_a_fence_that_wants_a_greater_token_refuses_its_own_holder(
    stock: AsyncEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`<` for `<=`: the test above is what finds it."""
    monkeypatch.setattr(
        Fence, "allows", property(lambda self: self.column.is_(None) | (self.column < self.token)), raising=True
    )
    with pytest.raises(AssertionError):
        await test_a_holder_writes_the_same_row_more_than_once(stock)


async def test_a_token_alone_fences_too(stock: AsyncEngine) -> None:
    """A worker that was sent the token in a message has no lease."""
    assert await write(stock, 5, MAX_TOKEN) == 1
    assert await write(stock, 6, MAX_TOKEN - 1) == 0
    assert await read(stock) == (5, MAX_TOKEN)


async def test_the_halves_fit_a_class_whose_attribute_has_another_name(stock: AsyncEngine) -> None:
    guarded = fence(Product.fenced_by, Handle("stock", 100))
    async with AsyncSession(stock) as session, session.begin():
        await session.execute(
            update(Product).where(Product.id == 7, guarded.allows).values(in_stock=9, **guarded.values)
        )
        await session.execute(guarded.guard(update(Product).where(Product.id == 7).values(in_stock=8)))
    assert await read(stock) == (8, 100)


async def test_the_halves_fit_an_upsert(stock: AsyncEngine) -> None:
    async def upsert(in_stock: int, token: int) -> None:
        guarded = fence(products.c.stock_token, token)
        statement = insert(products).values(id=7, in_stock=in_stock, **guarded.values)
        statement = statement.on_conflict_do_update(
            index_elements=["id"], set_={"in_stock": in_stock, **guarded.values}, where=guarded.allows
        )
        async with stock.begin() as connection:
            await connection.execute(statement)

    await upsert(5, 100)
    await upsert(6, 99)
    assert await read(stock) == (5, 100)


async def test_a_lost_lease_is_refused_when_a_half_is_used_and_not_only_when_the_fence_is_made(
    stock: AsyncEngine,
) -> None:
    lease = Handle("stock", 100)
    guarded = fence(products.c.stock_token, lease)
    statement = update(products).values(in_stock=0)
    guarded.guard(statement)
    lease.lost.reason = LossReason.STALLED
    for use in (lambda: guarded.allows, lambda: guarded.values, lambda: guarded.guard(statement)):
        with pytest.raises(LeaseLostError) as caught:
            use()
        assert caught.value.reason is LossReason.STALLED


@pytest.mark.parametrize("kind", [Integer(), SmallInteger()])
def test_a_column_that_is_too_small_for_a_token_is_refused(kind: Any) -> None:
    table = Table("t", MetaData(), Column("token", kind))
    with pytest.raises(ConfigurationError, match="BigInteger"):
        fence(table.c.token, 1)


@pytest.mark.parametrize("kind", [BigInteger(), Numeric(20, 0), BigInteger().with_variant(Integer(), "sqlite")])
def test_a_column_that_holds_a_token_is_taken(kind: Any) -> None:
    table = Table("t", MetaData(), Column("token", kind))
    assert fence(table.c.token, 5).values == {"token": 5}


@pytest.mark.parametrize("token", [0, -1, MAX_TOKEN + 1, True])
def test_what_is_no_token_is_refused(token: Any) -> None:
    for given in (token, Handle("stock", token)):
        with pytest.raises(ConfigurationError, match="token"):
            fence(products.c.stock_token, given)


def test_a_column_by_name_is_refused_with_the_way_to_give_it() -> None:
    with pytest.raises(ConfigurationError, match=r"products\.c\.stock_token"):
        fence("stock_token", 1)  # type: ignore[arg-type]  # that is the point


def test_a_token_that_is_text_is_refused() -> None:
    with pytest.raises(ConfigurationError, match="str"):
        fence(products.c.stock_token, Handle("stock", "7"))  # type: ignore[arg-type]  # that is the point


# ---------------------------------------------------------------------------------------------------- lease_guard


async def held(store: PostgresLockStore, key: str, owner: str, ttl_ms: int = 60_000) -> Handle:
    reply = await store.acquire(key, owner, ttl_ms)
    assert isinstance(reply, Acquired)
    return Handle(key, reply.token)


async def test_a_guarded_transaction_commits_while_the_lease_is_the_current_one(
    stock: AsyncEngine, store: PostgresLockStore, owner: Owner
) -> None:
    lease = await held(store, "stock", owner())
    async with stock.begin() as connection:
        await lease_guard(connection, lease)
        await connection.execute(update(products).values(in_stock=9))
    async with AsyncSession(stock) as session, session.begin():
        await lease_guard(session, lease)
        await session.execute(update(Product).values(in_stock=Product.in_stock + 1))
    assert (await read(stock))[0] == 10


async def test_a_takeover_waits_for_the_guarded_commit(
    stock: AsyncEngine, store: PostgresLockStore, owner: Owner, waits_for_a_row: Any
) -> None:
    lease = await held(store, "stock", owner(), 150)
    async with stock.connect() as connection:
        await lease_guard(connection, lease)
        await connection.execute(update(products).values(in_stock=9))
        while isinstance(reply := await _try(store, owner), Held):
            await asyncio.sleep(0.01)
        takeover = reply
        await waits_for_a_row()
        assert not takeover.done(), "it took the key over in the middle of the transaction"
        await connection.commit()
    granted = await takeover
    assert isinstance(granted, Acquired)
    assert granted.token > lease.token
    assert granted.after == "expired"
    assert (await read(stock))[0] == 9


async def _try(store: PostgresLockStore, owner: Owner) -> Any:
    """Ask for the key: `Held` while it is held, and the call itself once it waits for the row."""
    task = asyncio.create_task(store.acquire("stock", owner(), 60_000))
    done, _ = await asyncio.wait({task}, timeout=0.2)
    return task.result() if done else task


async def test_a_takeover_that_may_not_wait_is_told_so(
    stock: AsyncEngine, owner: Owner, person: Any, until: Any
) -> None:
    store = PostgresLockStore(stock, lock_timeout="50ms")
    lease = await held(store, "stock", owner(), 300)
    async with stock.begin() as connection:
        await lease_guard(connection, lease)
        expired = "SELECT bool_and(expires_at < clock_timestamp()) FROM tenure_locks"
        await until(lambda: person.fetchval(expired), "the lock to expire")
        with pytest.raises(asyncpg.LockNotAvailableError):
            await store.acquire("stock", owner(), 60_000)


async def test_neither_renewals_nor_the_release_wait_for_a_guarded_transaction(
    stock: AsyncEngine, owner: Owner
) -> None:
    """A lock mode that a renewal waits for would make each long transaction cost its own lease."""
    from tenure.store import Claim

    store, holder = PostgresLockStore(stock, lock_timeout="50ms"), owner()
    lease = await held(store, "stock", holder)
    async with stock.begin() as connection:
        await lease_guard(connection, lease)
        assert await store.renew("stock", holder, 60_000)
        assert await store.renew_many([Claim("stock", holder, 60_000)]) == [True]
        await lease_guard(connection, lease)
        assert isinstance(await store.acquire("stock", owner(), 60_000), Held), "a waiter is answered, too"
        assert await store.release("stock", holder)
        with pytest.raises(asyncpg.LockNotAvailableError):
            await store.acquire("stock", owner(), 60_000)


async def test_planted_an_acquisition_that_does_not_name_the_key_passes_the_guard(
    stock: AsyncEngine, store: PostgresLockStore, owner: Owner, person: Any, until: Any, *, planted_locks: Any
) -> None:
    """Without `key = excluded.key` the takeover takes a weaker lock, which the guard's does not keep away."""
    lease = await held(store, "stock", owner(), 100)
    planted_locks(
        store,
        "acquire",
        ("(key, owner, token, expires_at, after) = (", "(owner, token, expires_at, after) = ("),
        ("excluded.key, excluded.owner", "excluded.owner"),
    )
    async with stock.begin() as connection:
        await lease_guard(connection, lease)
        expired = "SELECT bool_and(expires_at < clock_timestamp()) FROM tenure_locks"
        await until(lambda: person.fetchval(expired), "the lock to expire")
        assert isinstance(await store.acquire("stock", owner(), 60_000), Acquired)


async def test_a_lease_that_somebody_took_over_is_refused(
    stock: AsyncEngine, store: PostgresLockStore, owner: Owner, person: Any
) -> None:
    lease = await held(store, "stock", owner())
    await person.execute("UPDATE tenure_locks SET expires_at = clock_timestamp()")
    with pytest.raises(LeaseLostError) as caught:
        async with stock.begin() as connection:
            await lease_guard(connection, lease)
    assert caught.value.reason is LossReason.REFUSED, "expired, and taken by nobody yet"
    await held(store, "stock", owner())
    with pytest.raises(LeaseLostError):
        async with stock.begin() as connection:
            await lease_guard(connection, lease)


async def test_a_released_lease_and_one_that_never_was_are_refused(
    stock: AsyncEngine, store: PostgresLockStore, owner: Owner
) -> None:
    holder = owner()
    lease = await held(store, "stock", holder)
    await store.release("stock", holder)
    for refused in (lease, Handle("stock", lease.token + 1), Handle("other", lease.token)):
        with pytest.raises(LeaseLostError):
            async with stock.begin() as connection:
                await lease_guard(connection, refused)


async def test_a_lease_that_its_holder_knows_to_be_lost_asks_nobody(
    stock: AsyncEngine, store: PostgresLockStore, owner: Owner
) -> None:
    lease = await held(store, "stock", owner())
    lease.lost.reason = LossReason.EXPIRED
    async with stock.connect() as connection:
        with pytest.raises(LeaseLostError) as caught:
            await lease_guard(connection, lease)
        assert not connection.in_transaction()
    assert caught.value.reason is LossReason.EXPIRED


async def test_a_guard_takes_a_scoped_session_and_refuses_what_is_no_asynchronous_connection(
    stock: AsyncEngine, store: PostgresLockStore, owner: Owner
) -> None:
    lease = await held(store, "stock", owner())
    scoped = async_scoped_session(async_sessionmaker(stock), scopefunc=asyncio.current_task)
    await lease_guard(scoped, lease)
    await scoped.remove()
    async with stock.begin() as connection:
        for wrong in (connection.sync_connection, stock, None):
            with pytest.raises(ConfigurationError, match="AsyncSession"):
                await lease_guard(wrong, lease)  # type: ignore[arg-type]  # that is the point


async def test_a_guard_that_would_end_with_its_own_statement_is_refused(
    make_engine: MakeEngine, store: PostgresLockStore, owner: Owner, database_url: str
) -> None:
    lease = await held(store, "stock", owner())
    async with make_engine(isolation_level="AUTOCOMMIT").connect() as connection:
        with pytest.raises(ConfigurationError, match="AUTOCOMMIT"):
            await lease_guard(connection, lease)
    async with AsyncSession(make_engine().execution_options(isolation_level="AUTOCOMMIT")) as session:
        with pytest.raises(ConfigurationError, match="AUTOCOMMIT"):
            await lease_guard(session, lease)


@pytest.mark.parametrize("level", ["READ COMMITTED", "REPEATABLE READ", "SERIALIZABLE"])
async def test_a_guard_that_comes_first_works_at_every_isolation_level(
    make_engine: MakeEngine, store: PostgresLockStore, owner: Owner, level: str
) -> None:
    holder = owner()
    lease = await held(store, "stock", holder)
    engine = make_engine(isolation_level=level)
    async with engine.begin() as connection:
        await lease_guard(connection, lease)
        assert await store.renew("stock", holder, 60_000)


STRICTER = ["REPEATABLE READ", "SERIALIZABLE"]


@pytest.mark.parametrize("level", STRICTER)
async def test_a_renewal_since_the_snapshot_does_not_fail_the_guard(
    make_engine: MakeEngine, store: PostgresLockStore, owner: Owner, level: str
) -> None:
    holder = owner()
    lease = await held(store, "stock", holder)
    async with make_engine(isolation_level=level).begin() as connection:
        await connection.exec_driver_sql("SELECT 1")
        await store.renew("stock", holder, 60_000)
        await lease_guard(connection, lease)


@pytest.mark.parametrize("level", STRICTER)
async def test_a_takeover_since_the_snapshot_fails_the_guard(
    make_engine: MakeEngine, store: PostgresLockStore, owner: Owner, person: Any, level: str
) -> None:
    """The snapshot still shows the lease as the current one."""
    lease = await held(store, "stock", owner())
    async with make_engine(isolation_level=level).connect() as connection:
        await connection.exec_driver_sql("SELECT 1 FROM tenure_locks")
        await person.execute("UPDATE tenure_locks SET expires_at = clock_timestamp()")
        await held(store, "stock", owner())
        with pytest.raises(DBAPIError) as caught:
            await lease_guard(connection, lease)
    assert getattr(caught.value.orig, "sqlstate", None) == "40001"


async def test_a_guard_that_meets_a_takeover_waits_for_it_and_is_refused(
    stock: AsyncEngine, owner: Owner, database_url: str, connect: Any, waits_for_a_row: Any
) -> None:
    """The guard begins while the takeover is not committed yet: what it can see still is the old lease, live."""
    store = PostgresLockStore(stock)
    lease = await held(store, "stock", owner())
    async with connect(database_url) as other, stock.connect() as connection:
        async with other.transaction():
            await other.execute("UPDATE tenure_locks SET owner = NULL")  # unseen by others, as is what follows
            taken = await other.fetchrow(store._sql.acquire, "stock", owner(), 60_000, "2s")
            assert taken["token"] > lease.token
            guard = asyncio.create_task(lease_guard(connection, lease))
            await waits_for_a_row()
        with pytest.raises(LeaseLostError):
            await guard


async def test_while_guarded_the_current_token_is_the_leases_whoever_races(
    stock: AsyncEngine, store: PostgresLockStore, owner: Owner
) -> None:
    """Leases of a millisecond, so that a takeover is under way at every moment of the guarded transactions."""
    over = False

    async def takers() -> None:
        while not over:
            await store.acquire("stock", owner(), 1)

    async def guarded() -> tuple[int, int]:
        passed = refused = 0
        while passed < 30 and refused < 3000:
            lease = await store.acquire("stock", owner(), 3)
            if not isinstance(lease, Acquired):
                continue
            try:
                async with stock.begin() as connection:
                    await lease_guard(connection, Handle("stock", lease.token))
                    for pause in (0.001, 0.004):
                        await asyncio.sleep(pause)
                        current = await connection.exec_driver_sql("SELECT token FROM tenure_locks")
                        assert current.scalar() == lease.token
                passed += 1
            except LeaseLostError:
                refused += 1
        return passed, refused

    racing = [asyncio.create_task(takers()) for _ in range(3)]
    try:
        passed, _ = await guarded()
    finally:
        over = True
        await asyncio.wait(racing)
    assert passed >= 30


async def test_the_guard_looks_at_the_table_that_the_store_was_given(
    stock: AsyncEngine, person: Any, owner: Owner
) -> None:
    name = 'we"ird :name \\ %s'
    await person.execute(create_schema_sql(table=name))
    store = PostgresLockStore(stock, table=name)
    lease = await held(store, "stock", owner())
    async with stock.begin() as connection:
        await lease_guard(connection, lease, table=name)
        with pytest.raises(LeaseLostError):
            await lease_guard(connection, lease)
    table = Table(name, MetaData(), Column("key", Text, primary_key=True))
    async with stock.begin() as connection:
        with pytest.raises(ConfigurationError, match="LockMixin"):
            await lease_guard(connection, lease, table=table)
