"""The command line: one file a verb; arguments and printing only.

A verb imports what it runs when it runs, so that `--help` and `config` answer at once.
"""
