"""The regression guard: tenure beside its floors for a minute, against ratios that are kept in a file."""
