"""Samples: readers, converters, augmentation, batches."""
