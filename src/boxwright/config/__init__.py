"""Messages of configurations, how their text is read and written, and what is supported."""
