"""Builders of objects from configuration messages, one per message; each raises a ConfigError if it cannot."""
