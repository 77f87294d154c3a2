"""The postprocessor of CenterNet: for each task its decoding."""
