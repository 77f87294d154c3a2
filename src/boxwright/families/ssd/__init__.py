"""SSD, RetinaNet and EfficientDet."""
