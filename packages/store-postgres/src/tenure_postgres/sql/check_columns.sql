-- Prevents: a column whose type or collation changes what is compared. Looks only.
SELECT attribute.attname::text AS name,
       format_type(attribute.atttypid, attribute.atttypmod) AS type,
       attribute.attnotnull AS required,
       attribute.atthasdef OR attribute.attidentity <> '' AS filled,
       ordering.collname::text AS collation,
       coalesce(ordering.collisdeterministic, true) AS deterministic
FROM pg_attribute AS attribute
LEFT JOIN pg_collation AS ordering ON ordering.oid = attribute.attcollation
WHERE attribute.attrelid = $1 AND attribute.attnum > 0 AND NOT attribute.attisdropped
ORDER BY attribute.attnum;
