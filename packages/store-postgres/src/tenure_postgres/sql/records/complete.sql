-- Prevents: a replaced execution overwrites the outcome of the one that replaced it.
--
-- A record that is another's, or completed, is told from a plain read. One that is the caller's and in flight is
-- locked, and what it is by then decides ("found"): a read beside the write would tell of the version before it, and
-- a takeover between the two would be answered with "stored". A record that is gone by then has no row there.
-- Response, state and retention are one write.
WITH bound AS MATERIALIZED (
    SELECT set_config('lock_timeout', $5, true), clock_timestamp() AS at
),
seen AS MATERIALIZED (
    SELECT coalesce(record.owner = $2, false) AS own, record.response IS NOT NULL AS completed
    FROM tenure_idempotency AS record, bound
    WHERE record.key = $1 AND record.expires_at > bound.at
),
locked AS MATERIALIZED (
    SELECT coalesce(record.owner = $2, false) AS own, record.response IS NOT NULL AS completed, record.expires_at
    FROM tenure_idempotency AS record, seen
    WHERE record.key = $1 AND seen.own AND NOT seen.completed
    FOR NO KEY UPDATE OF record
),
found AS MATERIALIZED (
    SELECT own, completed FROM locked WHERE expires_at > clock_timestamp()
    UNION ALL
    SELECT own, completed FROM seen WHERE completed OR NOT own
),
stored AS (
    UPDATE tenure_idempotency AS record
    SET response = $3, expires_at = clock_timestamp() + $4::bigint * interval '1 millisecond'
    FROM found
    WHERE record.key = $1 AND found.own AND NOT found.completed
    RETURNING true
)
SELECT CASE WHEN NOT found.own THEN 'stale'
            WHEN found.completed OR EXISTS (SELECT FROM stored) THEN 'stored'
       END AS outcome
FROM found;
