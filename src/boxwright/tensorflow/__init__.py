"""What TensorFlow wrote, read without TensorFlow."""
