-- Prevents: a release that notifies although nobody waits, and one that does not although somebody does.
--
-- Waiting is told without writing a row: by a shared advisory lock of this session. It is refused while a release of
-- the key commits, and not waited for: what this session hears would wait with it.
SELECT hashtext(given.key)::text AS of_key,
       pg_try_advisory_lock_shared($1::text::int, hashtext(given.key)) AS known
FROM unnest($2::text[]) WITH ORDINALITY AS given (key, place)
ORDER BY given.place;
