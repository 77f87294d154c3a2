"""Readers and writers of TensorFlow's files, without TensorFlow."""
