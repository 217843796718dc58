-- Prevents: a row for every key that was ever locked.
--
-- By the token, which tells when the key was acquired last: a key without a row begins at the wall clock again, and
-- that is past this token for as long as nobody sets it back by more than :older_than_us.
WITH now AS MATERIALIZED (SELECT tenure_now(identity) AS at, tenure_wall() AS wall FROM tenure_clock)
DELETE FROM tenure_locks
WHERE key IN (
    SELECT lock.key FROM tenure_locks AS lock, now
    WHERE (lock.owner IS NULL OR lock.expires_at <= now.at) AND lock.token <= now.wall - :older_than_us
    LIMIT :batch
)
RETURNING key;
