-- Prevents: A pauses, its lock ends, B takes over, A extends by key alone and keeps B's lock alive.
--
-- The row is locked first and its end is looked at afterwards: an UPDATE alone that waits for another session's lock
-- does not look again when that session changed nothing, and would revive a record that ended during the wait.
-- greatest(): an extension that comes late, or after the server's clock stepped back, never shortens what is left.
-- The grace is added as seconds: days of an interval are days of the calendar, an hour off where the clocks change.
WITH bound AS MATERIALIZED (
    SELECT set_config('lock_timeout', $4, true)
),
own AS MATERIALIZED (
    SELECT record.key, record.lock_until, record.expires_at
    FROM tenure_idempotency AS record, bound
    WHERE record.key = $1 AND record.owner = $2 AND record.response IS NULL
    FOR NO KEY UPDATE OF record
),
live AS MATERIALIZED (
    SELECT own.key, extract(epoch FROM own.expires_at - own.lock_until) AS grace_s,
           greatest(own.lock_until, clock_timestamp() + $3::bigint * interval '1 millisecond') AS lock_until
    FROM own
    WHERE own.expires_at > clock_timestamp()
)
UPDATE tenure_idempotency AS record
SET lock_until = live.lock_until, expires_at = live.lock_until + live.grace_s * interval '1 second'
FROM live
WHERE record.key = live.key
RETURNING true AS extended;
