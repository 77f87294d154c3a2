"""The detector of a whole configuration."""

from __future__ import annotations

from boxwright.base.errors import is_shortage
from boxwright.config.build import require
from boxwright.config.support import refuse_contradictions, refuse_unsupported
from boxwright.families.table import find_family
from boxwright.nn.detector import Detector
from boxwright.pipeline import messages as m
from boxwright.pipeline.message import image_channels, white_level
from boxwright.types import Categories


def build_detector(
    config: m.TrainEvalPipelineConfig | m.DetectionModel, categories: Categories | None = None
) -> Detector:
    """Build the detector that a configuration describes, with fresh weights.

    Args:
        config: The whole configuration, or its `model`.
        categories: The classes, attached to detections.

    Returns:
        The detector, in evaluation mode, on the CPU.

    Raises:
        ConfigError: If the configuration is incomplete, contradictory or not supported, or if the categories do
            not fit the number of classes.
    """
    if isinstance(config, m.TrainEvalPipelineConfig):
        model, channels = require(config.model, config, "model"), image_channels(config)
    else:
        model, channels = config, 3
    refuse_unsupported(model, "model")
    family = find_family(model)
    chosen = model.chosen("model")
    refuse_contradictions(chosen)
    # Families that take colors alone have no such argument; rules of the configuration refuse more for them.
    more = (channels,) if channels > 3 else ()  # red, green and blue
    try:
        # The detector stays in evaluation mode: laying anchors must not synchronize statistics between processes.
        detector: Detector = family.build(chosen, categories, *more).eval()
        if (size := detector.preprocessor.resizer.output_size) is not None:
            detector.network.lay_anchors(size, detector.preprocessor.resizer.channels)
        detector.white_level = white_level(config) if isinstance(config, m.TrainEvalPipelineConfig) else 0.0
        return detector
    except (ArithmeticError, AssertionError, LookupError, MemoryError, RuntimeError, TypeError, ValueError) as error:
        if is_shortage(error):
            raise model.refusal("", "not enough memory for the network that it describes") from None
        # Errors in torch or timm that no check above anticipates, such as inconsistent sizes.
        reason = (str(error).splitlines() or [""])[0][:300]
        raise model.refusal(
            "", f"the network that it describes cannot be built: {type(error).__name__}: {reason}"
        ) from error
