"""The command line: one file a verb; arguments and printing only."""
