-- Prevents: A outlives its lock, B takes over, A fails and frees the record under B.
--
-- The first attempt's record is deleted: nothing is known of the key. After an earlier attempt of unknown outcome the
-- row stays, without an owner and with its count: what is not known of attempt one is not known of the key.
-- The row is locked first, so that a transaction that is still under way has committed its effect, or has not.
WITH bound AS MATERIALIZED (
    SELECT set_config('lock_timeout', $3, true)
),
own AS MATERIALIZED (
    SELECT record.key, record.attempt, record.effect, record.lock_until, record.expires_at
    FROM tenure_idempotency AS record, bound
    WHERE record.key = $1 AND record.owner = $2 AND record.response IS NULL
    FOR UPDATE OF record
),
live AS MATERIALIZED (
    SELECT key, attempt, extract(epoch FROM expires_at - lock_until) AS grace_s, clock_timestamp() AS at
    FROM own
    WHERE expires_at > clock_timestamp() AND NOT effect
),
deleted AS (
    DELETE FROM tenure_idempotency AS record USING live
    WHERE record.key = live.key AND live.attempt = 1
    RETURNING true AS released
),
kept AS (
    UPDATE tenure_idempotency AS record
    SET owner = NULL, lock_until = live.at, expires_at = live.at + live.grace_s * interval '1 second'
    FROM live
    WHERE record.key = live.key AND live.attempt > 1
    RETURNING true AS released
)
SELECT released FROM deleted
UNION ALL
SELECT released FROM kept;
