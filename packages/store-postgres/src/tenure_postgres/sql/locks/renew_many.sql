-- Prevents: one row that another session has locked stops the renewal of every other lock.
--
-- Rows are locked in the order of their keys and those that somebody else has locked are skipped: this statement
-- waits for nobody, so it can neither hang nor be part of a deadlock. A claim whose row was skipped is answered with
-- null ("cannot tell"); one whose row was not its owner's live lock when the statement began, with false.
WITH claim AS MATERIALIZED (
    SELECT key, owner, ttl_ms, place
    FROM unnest($1::text[], $2::text[], $3::bigint[]) WITH ORDINALITY AS given (key, owner, ttl_ms, place)
),
own AS MATERIALIZED (
    SELECT lock.key, claim.ttl_ms, claim.place
    FROM claim JOIN tenure_locks AS lock ON lock.key = claim.key
    WHERE lock.owner = claim.owner AND lock.expires_at > clock_timestamp()
    ORDER BY lock.key
    FOR NO KEY UPDATE OF lock SKIP LOCKED
),
renewed AS (
    UPDATE tenure_locks AS lock
    SET expires_at = clock_timestamp() + own.ttl_ms * interval '1 millisecond'
    FROM own
    WHERE lock.key = own.key
    RETURNING own.place
)
SELECT CASE WHEN renewed.place IS NOT NULL THEN true
            WHEN seen.key IS NULL THEN false
       END AS renewed
FROM claim
LEFT JOIN renewed ON renewed.place = claim.place
LEFT JOIN tenure_locks AS seen
       ON seen.key = claim.key AND seen.owner = claim.owner AND seen.expires_at > clock_timestamp()
ORDER BY claim.place;
