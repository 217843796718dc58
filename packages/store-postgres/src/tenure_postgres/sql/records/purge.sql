-- Prevents: a record that is acquired anew while it is being purged is deleted under its execution.
--
-- FOR UPDATE looks at the end again once it has locked the row, and rows that somebody else has locked are left for
-- the next time. The moment is a subquery, evaluated once: an index is not searched for what may change with each row.
WITH ended AS MATERIALIZED (
    SELECT record.key
    FROM tenure_idempotency AS record
    WHERE record.expires_at <= (SELECT clock_timestamp())
    ORDER BY record.expires_at
    LIMIT $1
    FOR UPDATE SKIP LOCKED
),
purged AS (
    DELETE FROM tenure_idempotency AS record USING ended WHERE record.key = ended.key RETURNING true
)
SELECT count(*) AS purged FROM purged;
