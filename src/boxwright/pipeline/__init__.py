"""The whole configuration: read, overridden, and what is built from it beside the detector."""
