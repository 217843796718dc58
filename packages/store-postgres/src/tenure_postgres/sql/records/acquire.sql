-- Prevents: two requests read "new", and both run.
--
-- What needs no write is answered by a plain read ("seen"): 500 repeats of a request cost one read each, and lock and
-- write nothing. The rest is decided under the row's lock: ON CONFLICT DO UPDATE looks at its WHERE again after it has
-- locked the row, and of many callers one gets a row back. DO NOTHING would not do: a record whose time has ended
-- would block its key for ever.
-- The times are drawn in the SET, after the row's lock: those of "excluded" are from before the wait for it.
-- An abandoned record is taken over only where nobody has its row locked ("free"). A transaction that has it, under
-- assert_owner, may be about to commit the effect: the caller is neither kept waiting for it nor let past it.
-- No row comes back where the record changed under the call or is locked: run it again, and never go on without one.
-- set_config(…, true) bounds the wait for a row within this statement alone, behind a pooler too.
-- A grace is added as seconds: days of an interval are days of the calendar, an hour off where the clocks change.
WITH bound AS MATERIALIZED (
    SELECT set_config('lock_timeout', $7, true), clock_timestamp() AS at
),
seen AS MATERIALIZED (
    SELECT record.attempt, record.effect, record.response, record.owner,
           ceil(extract(epoch FROM record.lock_until - bound.at) * 1000)::bigint AS expires_in_ms,
           CASE WHEN record.response IS NOT NULL THEN 'completed'
                WHEN record.lock_until > bound.at THEN 'in flight'
                ELSE 'abandoned' END AS state,
           CASE WHEN record.fingerprint <> $3 THEN 'mismatch'
                WHEN record.response IS NOT NULL THEN 'completed'
                WHEN record.owner = $2 THEN 'own'
                WHEN record.lock_until > bound.at THEN 'in flight'
                WHEN record.effect OR NOT $6 THEN 'abandoned'
                ELSE 'to take over' END AS answer
    FROM tenure_idempotency AS record, bound
    WHERE record.key = $1 AND record.expires_at > bound.at
),
free AS MATERIALIZED (
    SELECT record.key
    FROM tenure_idempotency AS record, seen
    WHERE record.key = $1 AND seen.answer = 'to take over'
    FOR NO KEY UPDATE OF record SKIP LOCKED
),
taken AS (
    INSERT INTO tenure_idempotency AS record
        (key, owner, fingerprint, attempt, lock_until, expires_at, effect, response)
    SELECT $1, $2, $3, 1, now.at + $4::bigint * interval '1 millisecond',
           now.at + ($4::bigint + $5::bigint) * interval '1 millisecond', false, NULL
    FROM bound, (SELECT clock_timestamp() AS at) AS now
    WHERE NOT EXISTS (SELECT FROM seen WHERE answer <> 'own') OR EXISTS (SELECT FROM free)
    ON CONFLICT (key) DO UPDATE
    SET (owner, fingerprint, attempt, lock_until, expires_at, effect, response) = (
        SELECT excluded.owner, excluded.fingerprint,
               CASE WHEN its.end_passed THEN 1 WHEN its.own THEN record.attempt ELSE record.attempt + 1 END,
               next.lock_until,
               next.lock_until + CASE WHEN its.own THEN extract(epoch FROM record.expires_at - record.lock_until)
                                      ELSE $5::bigint / 1000.0 END * interval '1 second',
               its.own AND record.effect,
               NULL::bytea
        FROM (SELECT clock_timestamp() AS at) AS now,
             LATERAL (SELECT record.expires_at <= now.at AS end_passed,
                             record.expires_at > now.at AND coalesce(record.owner = $2, false) AS own) AS its,
             LATERAL (SELECT now.at + $4::bigint * interval '1 millisecond' AS lock_until) AS asked,
             LATERAL (SELECT CASE WHEN its.own THEN greatest(record.lock_until, asked.lock_until)
                                  ELSE asked.lock_until END AS lock_until) AS next
    )
    WHERE record.expires_at <= clock_timestamp()
       OR record.response IS NULL AND record.fingerprint = $3
          AND (record.owner = $2 OR record.lock_until <= clock_timestamp() AND NOT record.effect AND $6)
    RETURNING record.attempt
)
SELECT 'acquired' AS answer, attempt, NULL AS state, NULL::bigint AS expires_in_ms, NULL::boolean AS effect,
       NULL::bytea AS response, NULL AS owner
FROM taken
UNION ALL
SELECT answer, attempt, state, expires_in_ms, effect,
       CASE answer WHEN 'completed' THEN response END, CASE answer WHEN 'completed' THEN owner END
FROM seen
WHERE answer NOT IN ('own', 'to take over');
