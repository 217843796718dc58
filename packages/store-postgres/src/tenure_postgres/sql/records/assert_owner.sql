-- Prevents: an execution that was replaced commits beside the one that replaced it, and a repeat has the effect twice.
--
-- It runs in the transaction that has the effect. The row stays locked until that commits: nobody takes the record
-- over meanwhile, and afterwards "effect" says that nobody may. After a rollback nothing was said.
-- The row is locked first and its end is looked at afterwards, as in extend.sql.
-- The owner comes as its digest: this statement goes through the application's own engine, whose log may show
-- parameters.
WITH own AS MATERIALIZED (
    SELECT record.key, record.expires_at
    FROM tenure_idempotency AS record
    WHERE record.key = :key
      AND encode(sha256(convert_to(record.owner, 'UTF8')), 'hex') = :owner_digest
      AND record.response IS NULL
    FOR NO KEY UPDATE OF record
),
live AS MATERIALIZED (
    SELECT key FROM own WHERE expires_at > clock_timestamp()
)
UPDATE tenure_idempotency AS record
SET effect = true
FROM live
WHERE record.key = live.key
RETURNING true AS asserted;
