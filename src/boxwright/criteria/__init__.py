"""What a prediction should have been, and what it costs that it was not."""
