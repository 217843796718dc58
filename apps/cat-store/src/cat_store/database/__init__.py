"""The shop's database: engine, schema and migrations."""
