-- Prevents: A outlives its lock, B takes over, A fails and frees the record under B.
--
-- The first attempt's record goes: nothing is known of the key.
WITH now AS MATERIALIZED (SELECT tenure_now(identity) AS at FROM tenure_clock)
DELETE FROM tenure_idempotency
WHERE key = :key AND owner = :owner AND response IS NULL AND attempt = 1 AND expires_at > (SELECT at FROM now)
RETURNING attempt;
