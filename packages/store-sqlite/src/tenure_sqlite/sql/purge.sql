-- Prevents: a record that is acquired anew while it is being purged is deleted under its execution.
WITH now AS MATERIALIZED (SELECT tenure_now(identity) AS at, tenure_wall() AS wall FROM tenure_clock)
DELETE FROM tenure_idempotency
WHERE key IN (
    SELECT record.key FROM tenure_idempotency AS record, now
    WHERE record.expires_at <= CASE WHEN record.response IS NULL THEN now.at ELSE now.wall END
    LIMIT :batch
)
RETURNING attempt;
