-- Prevents: A releases after its lock expired, and frees the one that B holds; one row that another session has locked
-- stops every other release of its group.
--
-- It goes about the rows as renew_many.sql does; what is done to one, and who is notified of it, is as in release.sql.
-- Its commit waits for the disk whoever waits: one is not worth to leave the others undone by a crash.
-- RETURNING is worked out for each row that was freed, whether or not anybody reads it.
WITH own AS MATERIALIZED (
    SELECT claim.place, claim.key, claim.owner, lock.key AS locked
    FROM unnest($1::text[], $2::text[]) WITH ORDINALITY AS claim (key, owner, place)
    LEFT JOIN LATERAL (
        SELECT key
        FROM tenure_locks AS lock
        WHERE lock.key = claim.key AND lock.owner = claim.owner AND lock.expires_at > clock_timestamp()
          AND (lock.token >= 0 OR lock.key @@ lock.key AND lock.key @@ lock.owner AND lock.owner @@ lock.key
               AND lock.owner @@ lock.owner AND lock.key @@ lock.after AND lock.after @@ lock.key)
        FOR NO KEY UPDATE OF lock SKIP LOCKED
    ) AS lock ON true
    LIMIT (SELECT 1000000)
),
freed AS (
    UPDATE tenure_locks AS lock
    SET owner = NULL, expires_at = clock_timestamp()
    FROM own
    WHERE lock.key = own.locked
      AND (lock.token >= 0 OR lock.key @@ lock.key AND lock.key @@ lock.owner AND lock.owner @@ lock.key
               AND lock.owner @@ lock.owner AND lock.key @@ lock.after AND lock.after @@ lock.key)
    RETURNING own.place,
              CASE WHEN NOT pg_try_advisory_xact_lock(
                            coalesce(pg_partition_root(lock.tableoid)::oid, lock.tableoid)::int, hashtext(lock.key))
                   THEN pg_notify('tenure', concat(
                            coalesce(pg_partition_root(lock.tableoid)::oid, lock.tableoid)::int, ':', hashtext(lock.key)))
              END AS told
)
SELECT (SELECT array_agg(place) FROM freed) AS done,
       (SELECT array_agg(place) FROM own
        WHERE locked IS NULL
          AND NOT EXISTS (SELECT FROM tenure_locks AS lock
                          WHERE lock.key = own.key AND lock.owner = own.owner
                            AND lock.expires_at > clock_timestamp()
                            AND (lock.token >= 0 OR lock.key @@ lock.key AND lock.key @@ lock.owner AND lock.owner @@ lock.key
               AND lock.owner @@ lock.owner AND lock.key @@ lock.after AND lock.after @@ lock.key)
                          OFFSET 0)) AS refused;
