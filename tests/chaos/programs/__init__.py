"""Programs that the scenarios start as child processes, for what `chaos.holder` does not do."""
