-- Prevents: locks on a server that cannot keep them. Looks only.
SELECT current_setting('server_version_num')::int AS version,
       current_setting('server_version') AS version_text,
       pg_is_in_recovery() AS in_recovery,
       current_setting('transaction_read_only') = 'on' AS read_only,
       current_setting('default_transaction_isolation') AS isolation,
       current_setting('server_encoding') AS encoding,
       current_setting('fsync') = 'on' AS fsync,
       current_setting('synchronous_commit') AS synchronous_commit,
       current_setting('synchronous_standby_names') <> '' AS synchronous_standbys,
       current_setting('client_min_messages') AS client_min_messages,
       current_database() AS database,
       current_user AS role,
       pg_backend_pid() AS backend_pid,
       -- $1 is drawn for this check and stands in its text: behind a pooler others' statements are seen here too.
       EXISTS (SELECT FROM pg_prepared_statements WHERE position($1 IN statement) > 0) AS prepared;
