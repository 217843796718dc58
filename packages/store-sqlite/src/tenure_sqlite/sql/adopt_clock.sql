-- Prevents: a lock from before a reboot whose expiry is read on a clock that began anew, and never comes.
INSERT INTO tenure_clock (one, identity) VALUES (1, :identity)
ON CONFLICT (one) DO UPDATE SET identity = excluded.identity WHERE identity <> excluded.identity
RETURNING identity;
