-- Prevents: a table in which two keys become one, a crash loses rows, or a role cannot write. Looks only.
--
-- It reads the catalogs by name: to_regclass() fails where the role may not use the schema.
SELECT relation.oid,
       relation.relkind::text AS kind,
       relation.relpersistence::text AS persistence,
       row_security_active(relation.oid) AS row_security,
       has_schema_privilege(namespace.oid, 'USAGE') AS may_use_schema,
       namespace.nspname AS schema,
       has_table_privilege(relation.oid, 'SELECT') AS may_select,
       has_table_privilege(relation.oid, 'INSERT') AS may_insert,
       has_table_privilege(relation.oid, 'UPDATE') AS may_update,
       has_table_privilege(relation.oid, 'DELETE') AS may_delete,
       coalesce((SELECT option_value::int FROM pg_options_to_table(relation.reloptions)
                 WHERE option_name = 'fillfactor'), 100) AS fillfactor,
       (SELECT array_agg(attribute.attname::text ORDER BY attribute.attnum)
        FROM pg_index AS index JOIN pg_attribute AS attribute
          ON attribute.attrelid = index.indrelid AND attribute.attnum = ANY (index.indkey)
        WHERE index.indrelid = relation.oid AND index.indisprimary AND index.indimmediate) AS primary_key,
       EXISTS (SELECT FROM pg_index AS index JOIN pg_attribute AS attribute
                 ON attribute.attrelid = index.indrelid AND attribute.attnum = ANY (index.indkey)
               WHERE index.indrelid = relation.oid AND attribute.attname = 'expires_at') AS expiry_indexed,
       EXISTS (SELECT FROM pg_index AS index JOIN pg_attribute AS attribute
                 ON attribute.attrelid = index.indrelid AND attribute.attnum = index.indkey[0]
               WHERE index.indrelid = relation.oid AND attribute.attname = 'expires_at'
                 AND index.indpred IS NULL AND index.indisvalid) AS searchable_by_expiry
FROM pg_class AS relation
JOIN pg_namespace AS namespace ON namespace.oid = relation.relnamespace
WHERE relation.relname = $1
  AND CASE WHEN $2::text IS NULL THEN pg_table_is_visible(relation.oid) ELSE namespace.nspname = $2 END;
