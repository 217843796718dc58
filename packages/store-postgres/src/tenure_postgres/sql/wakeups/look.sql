-- Prevents: a connection that hears of nothing is listened on. Looks only.
--
-- A pooler makes up the process id that it tells its clients, and gives the server to somebody else. A table that was
-- made anew has another oid. max_locks_per_transaction is what a session may keep without taking others' share.
SELECT pg_backend_pid() AS backend_pid,
       to_regclass($1)::oid::int::text AS of_table,
       current_setting('transaction_read_only') = 'on' AS read_only,
       current_setting('max_locks_per_transaction')::int AS most;
