-- Prevents: A pauses, its lock expires, B acquires, A renews by key alone, and both believe.
WITH now AS MATERIALIZED (SELECT tenure_now(identity) AS at FROM tenure_clock)
UPDATE tenure_locks
SET expires_at = now.at + :ttl_us
FROM now
WHERE key = :key AND owner = :owner AND expires_at > now.at
RETURNING token;
