-- Prevents: a row is deleted, and the key's next token is lower than one that is out there.
--
-- Without its row a key's next token is the clock. So a row stays where its token is not behind the clock by the
-- whole age asked for: after a step back of the clock, or for an application that came from another store. Rows that
-- somebody is about to take are locked, and skipped; one that was taken in between is looked at again and stays.
-- $3 is where the last batch ended, so that the batches are one way through the primary key.
WITH bound AS MATERIALIZED (
    SELECT clock_timestamp() - $1::bigint * interval '1 millisecond' AS before
),
dead AS MATERIALIZED (
    SELECT lock.key
    FROM tenure_locks AS lock, bound
    WHERE lock.key > $3
      AND lock.expires_at <= bound.before
      AND lock.token < (extract(epoch FROM bound.before) * 1000000)::bigint
    ORDER BY lock.key
    LIMIT $2
    FOR UPDATE OF lock SKIP LOCKED
),
pruned AS (
    DELETE FROM tenure_locks AS lock USING dead WHERE lock.key = dead.key RETURNING lock.key
)
SELECT count(*) AS pruned, max(key) AS last_key FROM pruned;
