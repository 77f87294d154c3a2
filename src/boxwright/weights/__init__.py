"""Checkpoints: written atomically, read without running code, with reports of what was restored."""
