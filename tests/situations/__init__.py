"""What people run, as they write it."""
