-- Follows adopt_clock in its transaction: an execution from before a reboot does not live, and nobody knows how it went.
--
-- Its grace counts from now: how long the host was down is not known, and a record that is kept too long harms nobody.
UPDATE tenure_idempotency
SET lock_until = 0, expires_at = tenure_now(:identity) + grace
WHERE response IS NULL;
