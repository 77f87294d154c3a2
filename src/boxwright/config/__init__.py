"""Configurations: messages, text format, overrides, and what is supported."""

from boxwright.config.load import dump_message, load_config, load_message, parse_message
from boxwright.config.messages import TrainEvalPipelineConfig as Pipeline

__all__ = ["Pipeline", "dump_message", "load_config", "load_message", "parse_message"]
