-- Prevents: releases of a key go on notifying when nobody waits for it any more.
SELECT pg_advisory_unlock_shared($1::text::int, given.of_key::int)
FROM unnest($2::text[]) AS given (of_key);
