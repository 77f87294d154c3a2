"""TensorFlow's names of the layers that families share."""
