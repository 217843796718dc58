-- Prevents nothing: a look without a lock. An expired lock does not exist and is not listed.
SELECT key, owner, token, floor(extract(epoch FROM expires_at - clock_timestamp()) * 1000)::bigint AS expires_in_ms
FROM tenure_locks
WHERE owner IS NOT NULL AND expires_at > clock_timestamp() AND starts_with(key, $1)
ORDER BY key;
