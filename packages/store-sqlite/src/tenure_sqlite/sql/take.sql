-- Prevents: two callers read "free", and both take the lock.
--
-- One statement that writes: SQLite has the file's write lock before it evaluates anything, so both clocks are read,
-- and the row is looked at, when nobody else can write. A caller that waited draws its token after the wait.
-- The token is the wall clock in microseconds, or the last token + 1 where that clock lags behind it.
-- No row comes back where another owner's live lock is on the key.
WITH now AS MATERIALIZED (SELECT tenure_now(identity) AS at, tenure_wall() AS wall FROM tenure_clock)
INSERT INTO tenure_locks AS lock (key, owner, token, expires_at, after)
SELECT :key, :owner, max(now.wall, 1), now.at + :ttl_us, NULL FROM now WHERE true
ON CONFLICT (key) DO UPDATE
SET owner = excluded.owner,
    token = CASE WHEN lock.owner = excluded.owner AND lock.expires_at > excluded.expires_at - :ttl_us THEN lock.token
                 ELSE max(excluded.token, lock.token + 1) END,
    expires_at = excluded.expires_at,
    after = CASE WHEN lock.owner = excluded.owner AND lock.expires_at > excluded.expires_at - :ttl_us THEN lock.after
                 WHEN lock.owner IS NULL THEN 'released'
                 ELSE 'expired' END
WHERE lock.owner IS NULL OR lock.owner = excluded.owner OR lock.expires_at <= excluded.expires_at - :ttl_us
RETURNING token, after;
