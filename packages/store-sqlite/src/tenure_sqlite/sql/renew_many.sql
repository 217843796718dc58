-- Prevents: a thousand leases that need a thousand transactions, each with a wait for the disk.
WITH now AS MATERIALIZED (SELECT tenure_now(identity) AS at FROM tenure_clock),
claims AS MATERIALIZED (
    SELECT json_extract(value, '$[0]') AS key, json_extract(value, '$[1]') AS owner,
           json_extract(value, '$[2]') AS ttl_us
    FROM json_each(:claims)
)
UPDATE tenure_locks AS lock
SET expires_at = now.at + claims.ttl_us
FROM claims, now
WHERE lock.key = claims.key AND lock.owner = claims.owner AND lock.expires_at > now.at
RETURNING key, owner;
