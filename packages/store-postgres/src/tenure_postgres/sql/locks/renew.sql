-- Prevents: A pauses, its lock expires, B acquires, A renews by key alone, and both believe.
--
-- The row is locked first and its expiry is looked at afterwards: an UPDATE alone that waits for another session's
-- lock on the row does not look again when that session changed nothing, and would revive a lock that expired
-- during the wait. "live" reads what "own" has locked, so that no plan can look before the lock.
WITH bound AS MATERIALIZED (
    SELECT set_config('lock_timeout', $4, true)
),
own AS MATERIALIZED (
    SELECT lock.key, lock.expires_at FROM tenure_locks AS lock, bound
    WHERE lock.key = $1 AND lock.owner = $2
    FOR NO KEY UPDATE OF lock
),
live AS MATERIALIZED (
    SELECT key FROM own WHERE expires_at > clock_timestamp()
)
UPDATE tenure_locks AS lock
SET expires_at = clock_timestamp() + $3::bigint * interval '1 millisecond'
FROM live
WHERE lock.key = live.key
RETURNING true AS renewed;
