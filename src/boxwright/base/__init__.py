"""Shared foundations: errors, files, limits, settings, locks, threads and child processes."""
