"""How good a detector is: metrics, tables, pictures."""
