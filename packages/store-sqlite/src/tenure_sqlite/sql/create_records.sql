-- One row a key, for as long as its record lives; acquire takes one whose time has ended, purge deletes it.
--
-- Until its outcome is known, a record's times are on the clock of tenure_clock, which nobody sets: a second execution
-- beside a live one is what must not be. The retention of an outcome is days, and outlives reboots: it is on the wall
-- clock.
CREATE TABLE IF NOT EXISTS tenure_idempotency (
    key TEXT COLLATE BINARY NOT NULL PRIMARY KEY,
    owner TEXT,                    -- null: released, after an earlier attempt of unknown outcome
    fingerprint TEXT NOT NULL,     -- of the payload; stays when the record is completed
    attempt INTEGER NOT NULL,      -- how many executions began
    begun_at INTEGER NOT NULL,     -- when the last one did, in microseconds of the wall clock
    lock_until INTEGER NOT NULL,   -- until when it is believed alive, on the clock of tenure_clock
    grace INTEGER NOT NULL,        -- microseconds for which the record outlives its lock
    expires_at INTEGER NOT NULL,   -- when the record ends: lock_until + grace, or the retention on the wall clock
    response BLOB                  -- null until completed
) STRICT;
