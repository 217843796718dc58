-- Prevents: waiters that take the file's one write lock, for which the holder's renewal would wait.
--
-- A row: the key is another owner's, and for how long, rounded up. No row: it may be taken, as far as this look goes.
WITH now AS MATERIALIZED (SELECT tenure_now(identity) AS at FROM tenure_clock)
SELECT (lock.expires_at - now.at + 999) / 1000 AS expires_in_ms
FROM tenure_locks AS lock, now
WHERE lock.key = :key AND lock.owner <> :owner AND lock.expires_at > now.at;
