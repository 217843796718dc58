-- Prevents: what is not known of attempt one is forgotten with attempt two, which is known to have done nothing.
--
-- After an earlier attempt of unknown outcome the record stays, without an owner and with its count.
WITH now AS MATERIALIZED (SELECT tenure_now(identity) AS at FROM tenure_clock)
UPDATE tenure_idempotency AS record
SET owner = NULL, lock_until = now.at, expires_at = now.at + record.grace
FROM now
WHERE record.key = :key AND record.owner = :owner AND record.response IS NULL AND record.attempt > 1
  AND record.expires_at > now.at
RETURNING attempt;
