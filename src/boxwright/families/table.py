"""`DetectionModel`: a complete detector."""

from __future__ import annotations

from collections.abc import Callable

from boxwright.builders.align_det import build_align_det
from boxwright.builders.center_net.detector import build_center_net
from boxwright.builders.choice import build_chosen, require
from boxwright.builders.d_fine import build_d_fine
from boxwright.builders.faster_rcnn.detector import build_faster_rcnn
from boxwright.builders.refinedet.detector import build_refinedet
from boxwright.builders.srn import build_srn
from boxwright.builders.ssd.detector import build_ssd
from boxwright.config import messages as m
from boxwright.config.messages.pipeline import image_channels
from boxwright.config.support import refuse_unsupported
from boxwright.models.detector import Detector
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
    # Families that take colors alone have no such argument; rules of the configuration refuse more for them.
    more = (channels,) if channels > 3 else ()  # red, green and blue
    try:
        # In evaluation mode from here on: laying anchors must not synchronize statistics between processes.
        detector: Detector = build_chosen(model, "model", _DETECTORS, categories, *more).eval()
        if (size := detector.preprocessor.resizer.output_size) is not None:
            detector.network.lay_anchors(size, detector.preprocessor.resizer.channels)
        return detector
    except MemoryError:
        raise model.refusal("", "not enough memory for the network that it describes") from None
    except (ArithmeticError, AssertionError, LookupError, RuntimeError, TypeError, ValueError) as error:
        # Errors in torch or timm that no check above anticipates, such as inconsistent sizes.
        reason = (str(error).splitlines() or [""])[0][:300]
        raise model.refusal(
            "", f"the network that it describes cannot be built: {type(error).__name__}: {reason}"
        ) from error


def _experimental(config: m.ExperimentalModel, categories: Categories | None) -> Detector:
    del categories
    raise config.refusal(
        "",
        "the detector is given in Python: boxwright.train(config, detector=...) trains it, and "
        "boxwright.load_weights(detector, checkpoint) restores its weights",
    )


# Member of the oneof → its builder. A new family is one line here, and one in `DetectionModel`.
_DETECTORS: dict[str, Callable[..., Detector]] = {
    "faster_rcnn": build_faster_rcnn,
    "ssd": build_ssd,
    "refinedet": build_refinedet,
    "srn": build_srn,
    "align_det": build_align_det,
    "center_net": build_center_net,
    "d_fine": build_d_fine,
    "experimental_model": _experimental,
}
