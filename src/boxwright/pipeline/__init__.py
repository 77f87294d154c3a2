"""The whole configuration: read, overridden, and what is built from it beside the detector."""

from boxwright.pipeline.load import load_config
from boxwright.pipeline.message import TrainEvalPipelineConfig as Pipeline

__all__ = ["Pipeline", "load_config"]
