-- Prevents: a holder's transaction commits after somebody else took the key.
--
-- FOR KEY SHARE is the weakest lock that keeps an acquisition away: it waits for this transaction to end. Renewals
-- and the release of the holder itself do not, so a guarded transaction never costs its own lease. Tokens are
-- unique for ever, so the token alone proves whose lock it is.
SELECT true AS current
FROM tenure_locks
WHERE key = :key AND token = CAST(:token AS bigint) AND owner IS NOT NULL AND expires_at > clock_timestamp()
FOR KEY SHARE;
