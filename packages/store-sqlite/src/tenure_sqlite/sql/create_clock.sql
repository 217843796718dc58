-- One row: which clock the expiries in this file are read on, for all processes that use it.
CREATE TABLE IF NOT EXISTS tenure_clock (
    one INTEGER NOT NULL PRIMARY KEY CHECK (one = 1),
    identity TEXT NOT NULL
) STRICT;
