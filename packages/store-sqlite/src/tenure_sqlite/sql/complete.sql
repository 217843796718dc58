-- Prevents: a replaced execution overwrites the outcome of the one that replaced it.
--
-- Response, state and retention are one write; the fingerprint stays. No row comes back where nothing was stored:
-- look_outcome says why.
WITH now AS MATERIALIZED (SELECT tenure_now(identity) AS at, tenure_wall() AS wall FROM tenure_clock)
UPDATE tenure_idempotency AS record
SET response = :response, expires_at = now.wall + :retention_us
FROM now
WHERE record.key = :key AND record.owner = :owner AND record.response IS NULL AND record.expires_at > now.at
RETURNING attempt;
