-- Beside find_tables: the tables are there, and their clock is this one.
SELECT count(*) FROM tenure_clock WHERE identity = :identity;
