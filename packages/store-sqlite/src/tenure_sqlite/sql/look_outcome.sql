-- Follows a complete that stored nothing, which is true of whatever it finds: the record is another's, it is completed
-- already, or there is none.
WITH now AS MATERIALIZED (SELECT tenure_now(identity) AS at, tenure_wall() AS wall FROM tenure_clock)
SELECT CASE WHEN record.owner IS NOT :owner THEN 'stale'
            WHEN record.response IS NOT NULL THEN 'stored'
            ELSE 'in flight' END AS outcome
FROM tenure_idempotency AS record, now
WHERE record.key = :key
  AND record.expires_at > CASE WHEN record.response IS NULL THEN now.at ELSE now.wall END;
