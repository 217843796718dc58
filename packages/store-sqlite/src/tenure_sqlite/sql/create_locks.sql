-- One row a key, kept after the release: the next holder's token has to be greater than the last one.
--
-- BINARY is SQLite's default and compares keys byte by byte; it stands here because a lock depends on it.
CREATE TABLE IF NOT EXISTS tenure_locks (
    key TEXT COLLATE BINARY NOT NULL PRIMARY KEY,
    owner TEXT,                   -- null: released
    token INTEGER NOT NULL,       -- the fencing token of the last acquisition
    expires_at INTEGER NOT NULL,  -- microseconds on the clock of tenure_clock; of a released one, when it was released
    after TEXT,                   -- how the lock before this one ended: 'released', 'expired', or null
    CONSTRAINT token_in_range CHECK (token BETWEEN 1 AND 9007199254740991)
) STRICT, WITHOUT ROWID;
