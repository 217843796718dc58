-- Prevents: A releases after its lock expired, and frees the one that B holds.
--
-- The row stays, with its token: the next one has to be greater. Its expiry becomes the moment of the release, from
-- which prune() counts.
-- A notification makes commits wait for one another, so there is one only where somebody waits: whoever does holds
-- the shared advisory lock (table, hash of the key), and the exclusive one cannot be had. Where it can be had, it is
-- kept until the commit is seen by everybody: who comes to wait meanwhile gets the shared one afterwards, asks again
-- and finds the key free. No release falls between the two. A hash that two keys share wakes a waiter for nothing.
-- A partition has an oid of its own; waiters know that of the whole table.
-- Where somebody waits the commit waits for no disk and no standby: the next holder waits for his own, which has this
-- one in it, and so for one and not for two. A crash in between undoes the release, and the lock is there again for
-- what was left of its ttl, as one whose holder died.
WITH bound AS MATERIALIZED (
    SELECT set_config('lock_timeout', $3, true)
),
freed AS (
    UPDATE tenure_locks AS lock
    SET owner = NULL, expires_at = clock_timestamp()
    FROM bound
    WHERE lock.key = $1 AND lock.owner = $2 AND lock.expires_at > clock_timestamp()
    RETURNING lock.tableoid, lock.key
)
SELECT true AS released,
       CASE WHEN NOT pg_try_advisory_xact_lock(mark.of_table, mark.of_key)
            THEN set_config('synchronous_commit', 'off', true)
                 || pg_notify('tenure', concat(mark.of_table, ':', mark.of_key))::text
       END AS told
FROM freed,
     LATERAL (SELECT coalesce(pg_partition_root(freed.tableoid)::oid, freed.tableoid)::int AS of_table,
                     hashtext(freed.key) AS of_key) AS mark;
