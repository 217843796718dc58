-- Prevents nothing: a look without a lock. An expired lock does not exist and is not listed.
--
-- substr and not LIKE, which ignores case and has wildcards.
WITH now AS MATERIALIZED (SELECT tenure_now(identity) AS at FROM tenure_clock)
SELECT key, owner, token, (expires_at - now.at) / 1000 AS expires_in_ms
FROM tenure_locks, now
WHERE owner IS NOT NULL AND expires_at > now.at AND substr(key, 1, length(:prefix)) = :prefix
ORDER BY key;
