"""D-FINE."""
