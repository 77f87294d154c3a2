"""Kernels of non-maximum suppression with plain arguments; `postprocessing.nms` defines the rules."""
