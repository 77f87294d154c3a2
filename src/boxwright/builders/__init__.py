"""Where a configuration message becomes an object; one builder a message, tables in sight."""
