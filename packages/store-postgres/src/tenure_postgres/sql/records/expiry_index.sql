-- Prevents: purge() reads the whole table to find the few records that have ended.
--
-- What it costs is that no update is HOT: an extension or a completion writes to both indexes. Measured with 540 000
-- records on PostgreSQL 18: purge() takes 2 ms with the index and 95 ms without, 0.2 ms and 91 ms where nothing has
-- ended; a request (acquired, completed) writes 1.34 kB of WAL with it and 1.20 kB without (0.90 kB with a fillfactor
-- of 50, for twice the table), an extension 0.54 kB and 0.40 kB. Requests are answered before their first extension,
-- most of them, and are purged one by one: the locks table has it the other way round.
CREATE INDEX IF NOT EXISTS ix_tenure_idempotency_expires_at ON tenure_idempotency (expires_at);
