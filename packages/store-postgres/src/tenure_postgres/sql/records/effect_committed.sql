-- Prevents: "no effect" is answered while the transaction that has it is about to commit.
--
-- FOR SHARE waits for a transaction under assert_owner to end, and reads what it left. No look at the record's end:
-- what was committed stays committed.
WITH bound AS MATERIALIZED (
    SELECT set_config('lock_timeout', $3, true)
)
SELECT record.effect
FROM tenure_idempotency AS record, bound
WHERE record.key = $1 AND record.owner = $2
FOR SHARE OF record;
