"""The selective refinement network."""
