-- Prevents: one row that another session has locked stops the renewal of every other lock.
--
-- Rows that somebody else has locked are skipped: this statement waits for nobody, so it can neither hang nor be part of
-- a deadlock. Its answer is one row: the places of the claims that were renewed, and of those whose row was not their
-- owner's live lock when the statement began, which are refused. A claim that is in neither had its row skipped: this
-- statement cannot tell. "lock.token >= 0 OR ..." and LIMIT are for the planner, as in acquire_many.sql.
WITH own AS MATERIALIZED (
    SELECT claim.place, claim.key, claim.owner, claim.ttl_ms, lock.key AS locked
    FROM unnest($1::text[], $2::text[], $3::bigint[]) WITH ORDINALITY AS claim (key, owner, ttl_ms, place)
    LEFT JOIN LATERAL (
        SELECT key
        FROM tenure_locks AS lock
        WHERE lock.key = claim.key AND lock.owner = claim.owner AND lock.expires_at > clock_timestamp()
          AND (lock.token >= 0 OR lock.key @@ lock.key AND lock.key @@ lock.owner AND lock.owner @@ lock.key
               AND lock.owner @@ lock.owner AND lock.key @@ lock.after AND lock.after @@ lock.key)
        FOR NO KEY UPDATE OF lock SKIP LOCKED
    ) AS lock ON true
    LIMIT (SELECT 1000000)
),
renewed AS (
    UPDATE tenure_locks AS lock
    SET expires_at = clock_timestamp() + own.ttl_ms * interval '1 millisecond'
    FROM own
    WHERE lock.key = own.locked
      AND (lock.token >= 0 OR lock.key @@ lock.key AND lock.key @@ lock.owner AND lock.owner @@ lock.key
               AND lock.owner @@ lock.owner AND lock.key @@ lock.after AND lock.after @@ lock.key)
    RETURNING own.place
)
SELECT (SELECT array_agg(place) FROM renewed) AS done,
       (SELECT array_agg(place) FROM own
        WHERE locked IS NULL
          AND NOT EXISTS (SELECT FROM tenure_locks AS lock
                          WHERE lock.key = own.key AND lock.owner = own.owner
                            AND lock.expires_at > clock_timestamp()
                            AND (lock.token >= 0 OR lock.key @@ lock.key AND lock.key @@ lock.owner AND lock.owner @@ lock.key
               AND lock.owner @@ lock.owner AND lock.key @@ lock.after AND lock.after @@ lock.key)
                          OFFSET 0)) AS refused;
