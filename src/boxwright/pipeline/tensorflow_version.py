"""The TensorFlow version whose semantics a configuration has: TF1's for names that only TF1 knows."""

from __future__ import annotations

import copy
import re

from boxwright.config.messages.ssd_feature_extractor import extractor_version
from boxwright.pipeline import messages as m


def tensorflow_version(model: m.DetectionModel | None) -> int:
    """Return 1 or 2; Boxwright's own models count as 2."""
    two_stage = model.faster_rcnn.feature_extractor if model is not None and model.faster_rcnn is not None else None
    if two_stage is not None:
        return two_stage.version
    extractor = _extractor(model)
    return 2 if extractor is None else extractor_version(extractor)


def _extractor(model: m.DetectionModel | None) -> m.SsdFeatureExtractor | None:
    return model.ssd.feature_extractor if model is not None and model.ssd is not None else None


def keep_version(config: m.TrainEvalPipelineConfig, begun: m.TrainEvalPipelineConfig) -> m.TrainEvalPipelineConfig:
    """Return a configuration with the version that a run of the same model started with."""
    extractor, begun_extractor = _extractor(config.model), _extractor(begun.model)
    same = extractor is not None and begun_extractor is not None and extractor.type == begun_extractor.type
    return with_version(config, tensorflow_version(begun.model)) if same else config


def with_version(config: m.TrainEvalPipelineConfig, version: int) -> m.TrainEvalPipelineConfig:
    """Return a configuration with a version set, if its model has the field."""
    if tensorflow_version(config.model) == version:
        return config
    changed = copy.deepcopy(config)
    if (extractor := _extractor(changed.model)) is not None:
        extractor.tensorflow_version = version
    return changed


def explain_version(config: m.TrainEvalPipelineConfig) -> str:
    """Return the differences from the other TensorFlow version's semantics; empty if both agree."""
    ssd = config.model.ssd if config.model is not None else None
    extractor = _extractor(config.model)
    train = config.train_config
    rms_prop = train.optimizer.rms_prop_optimizer if train is not None and train.optimizer is not None else None
    version = tensorflow_version(config.model)
    lines = []
    if rms_prop is not None and rms_prop.decay:
        lines.append(f"rms_prop_optimizer.decay {rms_prop.decay:g}: {_RMS_PROP[version]}")
    if version == 1 and train is not None and train.optimizer is not None and train.optimizer.momentum_optimizer:
        lines.append("momentum_optimizer: the sum of gradients is multiplied with the rate (TF2: each with its own)")
    if version == 1 and config.model is not None and config.model.faster_rcnn is not None:
        lines.append("fc_hyperparams: initializer and penalty are for the dense layers (TF2: Keras's, and none)")
        kind = config.model.faster_rcnn.feature_extractor
        return "\n".join([_APPLIES.format(kind.type if kind else ""), *(f"  {line}" for line in lines)])
    if version == 2 or extractor is None or ssd is None:
        return "\n".join(lines)
    lines.append("conv_hyperparams: initializer and penalty are for depthwise and separable kernels, too")
    if extractor.override_base_feature_extractor_hyperparams:
        lines += [
            f"override_base_feature_extractor_hyperparams: {note}"
            for name, note in _OWN
            if re.search(name, extractor.type)
        ]
    if "_fpn" in extractor.type:
        lines.append("fpn: the sum goes down to the next finer level (TF2: the smoothed map)")
    predictor = ssd.box_predictor
    if predictor is not None and predictor.weight_shared_convolutional_box_predictor is not None:
        lines.append("weight_shared_convolutional_box_predictor: its towers have RELU_6, whatever is configured")
    return "\n".join([_APPLIES.format(extractor.type), *(f"  {line}" for line in lines)])


_APPLIES = "{} is TensorFlow 1's, whose meaning applies:"
_RMS_PROP = {
    1: "the decay of the average of squares, which starts at 1 (TF2: a decay of the learning rate)",
    2: "a decay of the learning rate, divided by 1 + decay · step (TF1: the decay of the average of squares)",
}
# A pattern of types → the settings that such backbones keep.
_OWN = (
    ("mobilenet_v2", "the backbone keeps RELU_6, and learns gain and bias of normalization"),
    ("mobilenet_v3", "the backbone keeps its activations, and learns gain and bias of normalization"),
    ("edgetpu", "the backbone keeps its activations"),
    ("pnasnet", "each convolution is normalized and activated as configured, before the network's own normalization"),
    ("mobiledet", "the backbone keeps all of its own"),
    ("resnet.*_fpn", "the backbone keeps the decay and epsilon of its normalization"),
    ("resnet.*_ppn", "without effect: the backbone keeps all of its own, as TF passes the flag on in the wrong place"),
)
