-- Prevents: a default of REPEATABLE READ or SERIALIZABLE makes callers that race for one row fail (40001).
SELECT current_setting('default_transaction_isolation') AS isolation;
