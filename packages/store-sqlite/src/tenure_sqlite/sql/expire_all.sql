-- Follows adopt_clock in its transaction: whoever held a lock on the clock before is gone, with the boot it ran in.
UPDATE tenure_locks SET expires_at = 0 WHERE owner IS NOT NULL;
