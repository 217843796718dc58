-- Prevents: two callers read "free", and both take the lock.
--
-- The answer "held" is a plain read of the row, so that any number of waiters neither lock the row that its holder
-- renews nor write to it. Everything else is decided under the row's lock: ON CONFLICT DO UPDATE looks at its WHERE
-- again after it has locked the row, and of many callers one gets a row back.
-- The token is drawn in the SET, after the row's lock: drawn before it, a caller that waited would carry a token that
-- a faster one has passed. It is the clock in microseconds, or the last token + 1 where the clock lags behind it: a
-- counter alone repeats itself after a failover that lost the last commits.
-- "key = excluded.key" changes nothing and makes PostgreSQL lock the row FOR UPDATE, for which lease_guard's
-- FOR KEY SHARE is waited for. A renewal does not name the key and does not wait.
-- set_config(…, true) bounds that wait within this statement alone, behind a pooler too.
WITH bound AS MATERIALIZED (
    SELECT set_config('lock_timeout', $4, true)
),
seen AS MATERIALIZED (
    SELECT owner, token, expires_at FROM tenure_locks WHERE key = $1
),
taken AS (
    INSERT INTO tenure_locks AS lock (key, owner, token, expires_at, after)
    SELECT $1, $2, (extract(epoch FROM clock_timestamp()) * 1000000)::bigint,
           clock_timestamp() + $3::bigint * interval '1 millisecond', NULL
    FROM bound
    WHERE NOT EXISTS (SELECT FROM seen WHERE owner <> $2 AND expires_at > clock_timestamp())
    ON CONFLICT (key) DO UPDATE
    SET (key, owner, token, expires_at, after) = (
        SELECT excluded.key, excluded.owner,
               CASE WHEN own.live THEN lock.token
                    ELSE greatest((extract(epoch FROM now.at) * 1000000)::bigint, lock.token + 1) END,
               now.at + $3::bigint * interval '1 millisecond',
               CASE WHEN own.live THEN lock.after
                    WHEN lock.owner IS NULL THEN 'released'
                    ELSE 'expired' END
        FROM (SELECT clock_timestamp() AS at) AS now,
             LATERAL (SELECT coalesce(lock.owner = $2 AND lock.expires_at > now.at, false) AS live) AS own
    )
    WHERE (lock.owner IS NULL OR lock.owner = $2 OR lock.expires_at <= clock_timestamp())
      AND lock.token < 9007199254740991
    RETURNING lock.token, lock.after
)
SELECT token, after, NULL::bigint AS expires_in_ms, false AS exhausted
FROM taken
UNION ALL
SELECT NULL, NULL,
       (SELECT ceil(extract(epoch FROM expires_at - clock_timestamp()) * 1000)::bigint
        FROM seen WHERE owner <> $2 AND expires_at > clock_timestamp()),
       EXISTS (SELECT FROM seen WHERE token >= 9007199254740991)
WHERE NOT EXISTS (SELECT FROM taken);
