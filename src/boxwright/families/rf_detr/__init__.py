"""RF-DETR: a windowed vision transformer, and queries in groups that detect an object each."""
