"""Pure tensor functions: boxes, similarity, box coding, matching, suppression, resizing."""
