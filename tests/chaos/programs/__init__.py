"""Programs that the scenarios start as child processes, for what `chaos.programs.holder` does not do."""
