"""SSD from its message."""
