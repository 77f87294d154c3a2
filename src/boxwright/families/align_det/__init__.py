"""AlignDet."""
