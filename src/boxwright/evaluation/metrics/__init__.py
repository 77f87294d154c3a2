"""Metrics of detection: one matching core, and each benchmark's rules."""
