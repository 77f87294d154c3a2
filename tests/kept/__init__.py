"""What an earlier version left, which later ones must resume and open."""
