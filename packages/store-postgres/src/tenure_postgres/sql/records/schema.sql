-- One row a key, for as long as its record lives; acquire() takes one whose time has ended, purge() deletes it.
--
-- COLLATE "C" compares keys byte by byte: two requests never become one. While a record is in flight,
-- expires_at - lock_until is its grace, and what is left after the lock has ended says that an execution began and
-- nobody knows how it went. A table that a crash empties (UNLOGGED) would run each of those requests again.
-- The response is bytea: text and jsonb refuse NUL and change what they are given.
-- There is an index on expires_at, in expiry_index.sql, so that purge() costs what it deletes. No fillfactor then:
-- the index keeps updates from being HOT whatever room there is on the page.
-- vacuum_truncate is off because giving pages back takes an exclusive lock, for which every request would wait.
CREATE TABLE IF NOT EXISTS tenure_idempotency (
    key text COLLATE "C" NOT NULL,
    owner text,                       -- null: released, after an earlier attempt of unknown outcome
    fingerprint text NOT NULL,        -- of the payload; stays when the record is completed
    attempt integer NOT NULL,         -- how many executions began
    lock_until timestamptz NOT NULL,  -- until when the execution is believed alive
    expires_at timestamptz NOT NULL,  -- when the record ends: its grace, or the retention of a completed one
    effect boolean NOT NULL,          -- whether the execution has had its effect, see assert_owner.sql
    response bytea,                   -- null until completed
    PRIMARY KEY (key)
) WITH (vacuum_truncate = off);
