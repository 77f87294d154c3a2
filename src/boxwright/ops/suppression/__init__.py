"""Kernels of non-maximum suppression, which take plain values; `postprocessing.nms` says which rules there are."""
