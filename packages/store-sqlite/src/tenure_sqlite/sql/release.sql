-- Prevents: A releases after its lock expired, and frees the one that B holds.
--
-- The row stays, with its token: the next one has to be greater.
WITH now AS MATERIALIZED (SELECT tenure_now(identity) AS at FROM tenure_clock)
UPDATE tenure_locks
SET owner = NULL, expires_at = now.at
FROM now
WHERE key = :key AND owner = :owner AND expires_at > now.at
RETURNING token;
