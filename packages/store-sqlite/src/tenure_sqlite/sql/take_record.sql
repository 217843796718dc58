-- Prevents: two requests read "new", and both run.
--
-- One statement that writes, as take.sql. "its" is the record as it was found: ended, or the caller's own.
-- No row comes back where the record allows no execution to begin.
WITH now AS MATERIALIZED (SELECT tenure_now(identity) AS at, tenure_wall() AS wall FROM tenure_clock)
INSERT INTO tenure_idempotency AS record (key, owner, fingerprint, attempt, begun_at, lock_until, grace, expires_at)
SELECT :key, :owner, :fingerprint, 1, now.wall, now.at + :lock_us, :grace_us, now.at + :lock_us + :grace_us
FROM now WHERE true
ON CONFLICT (key) DO UPDATE
SET (owner, fingerprint, attempt, begun_at, lock_until, grace, expires_at, response) = (
    SELECT excluded.owner, excluded.fingerprint,
           CASE WHEN its.ended THEN 1 WHEN its.own THEN record.attempt ELSE record.attempt + 1 END,
           CASE WHEN its.own THEN record.begun_at ELSE excluded.begun_at END,
           CASE WHEN its.own THEN max(record.lock_until, excluded.lock_until) ELSE excluded.lock_until END,
           CASE WHEN its.own THEN record.grace ELSE excluded.grace END,
           CASE WHEN its.own THEN max(record.lock_until, excluded.lock_until) + record.grace ELSE excluded.expires_at END,
           NULL
    FROM (
        SELECT found.ended, NOT found.ended AND coalesce(record.owner = excluded.owner, false) AS own
        FROM (
            SELECT record.expires_at <= CASE WHEN record.response IS NULL THEN excluded.lock_until - :lock_us
                                             ELSE excluded.begun_at END AS ended
        ) AS found
    ) AS its
)
WHERE record.expires_at <= CASE WHEN record.response IS NULL THEN excluded.lock_until - :lock_us
                                ELSE excluded.begun_at END
   OR record.response IS NULL AND record.fingerprint = excluded.fingerprint
      AND (record.owner = excluded.owner OR record.lock_until <= excluded.lock_until - :lock_us AND :takeover)
RETURNING attempt;
