"""What augmentation does to a whole sample: each kernel once. Random steps draw its parameters and call it."""
