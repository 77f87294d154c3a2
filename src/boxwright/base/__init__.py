"""What every room stands on: errors, files, limits, settings, locks, threads and child processes."""
