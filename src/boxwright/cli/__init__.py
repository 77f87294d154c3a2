"""The command line: one file per command, for arguments and printing only.

A command imports its code when it runs, so that `--help` and `config` answer at once.
"""
