"""Faster R-CNN, Mask R-CNN, R-FCN and Context R-CNN."""
