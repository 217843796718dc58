"""The scenarios: each asks every contender the same question."""
