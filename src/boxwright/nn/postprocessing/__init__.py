"""From raw predictions to detections: decoding, score conversion, suppression, clipping."""
