"""Data augmentation: transforms of a sample, each fully decided by the generator it is given."""
