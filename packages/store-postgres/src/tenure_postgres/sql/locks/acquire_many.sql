-- Prevents: one row that another session has locked stops every other acquisition of its group.
--
-- It decides on each claim as acquire.sql does. Places, and a key only where its row is new, come back; a claim without
-- an answer is one about which this statement could not tell, and is asked alone.
-- "own" locks what may be taken, and gets the newest version of the row: a token is drawn from what was locked. It locks
-- FOR UPDATE, which the UPDATE keeps, so lease_guard's FOR KEY SHARE is respected; it skips what others have locked, and
-- leaves alone what is held.
-- "lock.token >= 0 OR ..." is always true, and its second half is never worked out; LIMIT leaves nothing out. Both are
-- there for the planner: to it, one looks dear, and the other few. A plan is kept, and one that was made while the table was small
-- would read all of it when it has grown; so each row is looked up by its key.
-- The only thing that this statement ever waits for is another session that is inserting the same key. Whoever inserts
-- does so in the order of the keys, or one key and nothing else; so of any sessions that wait for one another, the one
-- that has inserted the greatest key waits for nobody, and there is no deadlock. set_config(…, true) bounds the wait.
WITH bound AS MATERIALIZED (
    SELECT set_config('lock_timeout', $4, true)
),
own AS MATERIALIZED (
    SELECT claim.place, claim.key, claim.owner, claim.ttl_ms, clock_timestamp() AS at,
           lock.key AS locked, lock.owner AS was, lock.token, lock.expires_at, lock.after
    FROM unnest($1::text[], $2::text[], $3::bigint[]) WITH ORDINALITY AS claim (key, owner, ttl_ms, place)
    LEFT JOIN LATERAL (
        SELECT key, owner, token, expires_at, after
        FROM tenure_locks AS lock
        WHERE lock.key = claim.key
          AND (lock.owner IS NULL OR lock.owner = claim.owner OR lock.expires_at <= clock_timestamp())
          AND lock.token < 9007199254740991
          AND (lock.token >= 0 OR lock.key @@ lock.key AND lock.key @@ lock.owner AND lock.owner @@ lock.key
               AND lock.owner @@ lock.owner AND lock.key @@ lock.after AND lock.after @@ lock.key)
        FOR UPDATE OF lock SKIP LOCKED
    ) AS lock ON true
    LIMIT (SELECT 1000000)
),
taken AS (
    UPDATE tenure_locks AS lock
    SET owner = own.owner,
        token = CASE WHEN own.was = own.owner AND own.expires_at > own.at THEN own.token
                     ELSE greatest((extract(epoch FROM own.at) * 1000000)::bigint, own.token + 1) END,
        expires_at = own.at + own.ttl_ms * interval '1 millisecond',
        after = CASE WHEN own.was IS NULL THEN 'released'
                     WHEN own.was = own.owner AND own.expires_at > own.at THEN own.after
                     ELSE 'expired' END
    FROM own
    WHERE lock.key = own.locked
      AND (lock.token >= 0 OR lock.key @@ lock.key AND lock.key @@ lock.owner AND lock.owner @@ lock.key
               AND lock.owner @@ lock.owner AND lock.key @@ lock.after AND lock.after @@ lock.key)
    RETURNING own.place, lock.token, lock.after
),
rest AS MATERIALIZED (
    SELECT own.place, own.key, own.owner, own.ttl_ms, seen.token, seen.expires_at,
           seen.owner <> own.owner AND seen.expires_at > clock_timestamp() AS held
    FROM own LEFT JOIN LATERAL (
        SELECT owner, token, expires_at FROM tenure_locks AS lock
        WHERE lock.key = own.key AND (lock.token >= 0 OR lock.key @@ lock.key AND lock.key @@ lock.owner AND lock.owner @@ lock.key
               AND lock.owner @@ lock.owner AND lock.key @@ lock.after AND lock.after @@ lock.key) OFFSET 0
    ) AS seen ON true
    WHERE own.locked IS NULL
),
created AS (
    INSERT INTO tenure_locks AS lock (key, owner, token, expires_at, after)
    SELECT rest.key, rest.owner, (extract(epoch FROM clock_timestamp()) * 1000000)::bigint,
           clock_timestamp() + rest.ttl_ms * interval '1 millisecond', NULL
    FROM rest, bound
    WHERE rest.token IS NULL
    ORDER BY rest.key COLLATE "C"
    ON CONFLICT (key) DO NOTHING
    RETURNING key, token
)
SELECT place, NULL AS key, token, after, NULL::bigint AS expires_in_ms
FROM taken
UNION ALL
SELECT NULL, key, token, NULL, NULL
FROM created
UNION ALL
SELECT place, NULL, NULL, CASE WHEN held THEN NULL ELSE 'exhausted' END,
       CASE WHEN held THEN ceil(extract(epoch FROM expires_at - clock_timestamp()) * 1000)::bigint END
FROM rest
WHERE held OR token >= 9007199254740991;
