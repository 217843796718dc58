-- Prevents: five hundred repeats of a request that take the file's one write lock.
--
-- A row: what the record says to who asks. "own" and "to take over" are for take_record to decide; no row: so is it.
WITH now AS MATERIALIZED (SELECT tenure_now(identity) AS at, tenure_wall() AS wall FROM tenure_clock)
SELECT CASE WHEN record.fingerprint <> :fingerprint THEN 'mismatch'
            WHEN record.response IS NOT NULL THEN 'completed'
            WHEN record.owner = :owner THEN 'own'
            WHEN record.lock_until > now.at THEN 'in flight'
            WHEN NOT :takeover THEN 'abandoned'
            ELSE 'to take over' END AS answer,
       CASE WHEN record.response IS NOT NULL THEN 'completed'
            WHEN record.lock_until > now.at THEN 'in flight'
            ELSE 'abandoned' END AS state,
       record.attempt, (record.lock_until - now.at + 999) / 1000 AS expires_in_ms,
       CASE WHEN record.fingerprint = :fingerprint THEN record.response END AS response, record.owner
FROM tenure_idempotency AS record, now
WHERE record.key = :key
  AND record.expires_at > CASE WHEN record.response IS NULL THEN now.at ELSE now.wall END;
