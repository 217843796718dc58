-- Prevents: A releases after its lock expired, and frees the one that B holds.
--
-- The row stays, with its token: the next one has to be greater. Its expiry becomes the moment of the release, from
-- which prune() counts.
WITH bound AS MATERIALIZED (
    SELECT set_config('lock_timeout', $3, true)
)
UPDATE tenure_locks AS lock
SET owner = NULL, expires_at = clock_timestamp()
FROM bound
WHERE lock.key = $1 AND lock.owner = $2 AND lock.expires_at > clock_timestamp()
RETURNING true AS released;
