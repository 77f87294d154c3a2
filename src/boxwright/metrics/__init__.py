"""Metrics of detection: one matching core, and what each benchmark makes of it."""
