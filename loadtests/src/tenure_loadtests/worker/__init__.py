"""A contender's own process: commands come in as JSON lines, answers go out as JSON lines. Standard library only."""
