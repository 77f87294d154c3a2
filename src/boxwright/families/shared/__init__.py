"""What several families build alike from their messages."""
