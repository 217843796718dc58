-- Prevents: a process that only opens the file, and waits for its write lock behind everybody who has work to do.
SELECT count(*) FROM sqlite_schema
WHERE type = 'table' AND name IN ('tenure_locks', 'tenure_idempotency', 'tenure_clock');
