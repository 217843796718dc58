-- Prevents: A pauses, its lock ends, B takes over, A extends by key alone and keeps B's lock alive.
--
-- max(): an extension that comes late never shortens what is left.
WITH now AS MATERIALIZED (SELECT tenure_now(identity) AS at FROM tenure_clock)
UPDATE tenure_idempotency AS record
SET lock_until = max(record.lock_until, now.at + :lock_us),
    expires_at = max(record.lock_until, now.at + :lock_us) + record.grace
FROM now
WHERE record.key = :key AND record.owner = :owner AND record.response IS NULL AND record.expires_at > now.at
RETURNING attempt;
