"""The root of a configuration.

Names, types, defaults and oneofs are those of the TensorFlow Object Detection API.
"""

import math
import re
from typing import Any

from boxwright.config.field import UInt32, field, number
from boxwright.config.message import Message
from boxwright.config.messages.eval import EvalConfig
from boxwright.config.messages.input_reader import InputReader
from boxwright.config.messages.preprocessor import ANY_CHANNELS
from boxwright.config.messages.train import GraphRewriter, TrainConfig, WeightsOrigin
from boxwright.config.rules import QUANTIZATION, Rule, refuse
from boxwright.families.table import DetectionModel


def _more_channels_problem(config: "TrainEvalPipelineConfig") -> str:
    """Return what cannot take images of more than red, green and blue; empty where all can."""
    readers = [reader for reader in (config.train_input_reader, *config.eval_input_reader) if reader is not None]
    counts = {reader.num_additional_channels for reader in readers}
    if len(counts) > 1:
        numbers = " and ".join(map(str, sorted(counts)))
        return f"readers have {numbers}, but a network has one number of channels; set it to the same in all"
    if not any(counts) or config.model is None:
        return ""
    steps = config.train_config.data_augmentation_options if config.train_config is not None else []
    names = [step.which("preprocessing_step") for step in steps]
    refused = [name for name in names if name is not None and name not in ANY_CHANNELS]
    if refused:
        return f"{', '.join(refused)} needs red, green and blue alone; remove it from data_augmentation_options"
    return _three_channels_problem(config.model, 3 + max(counts))


def _three_channels_problem(model: DetectionModel, channels: int) -> str:
    family, chosen = model.which("model"), model.chosen("model")
    extractor, resizer = getattr(chosen, "feature_extractor", None), getattr(chosen, "image_resizer", None)
    kind = getattr(extractor, "type", "")
    if family in ("center_net", "experimental_model") or re.match("timm/|ssd_efficientnet", kind):
        return "this network takes red, green and blue alone; use a feature extractor of TensorFlow 1, or 0"
    resizing = resizer.chosen("image_resizer_oneof") if resizer is not None else None
    if getattr(resizing, "convert_to_grayscale", False):
        return "convert_to_grayscale takes red, green and blue alone, in TensorFlow, too; remove it"
    colors = len(getattr(resizing, "per_channel_pad_value", ()))
    return f"per_channel_pad_value has {colors} numbers; give {channels}" if colors not in (0, channels) else ""


class TrainEvalPipelineConfig(Message, path=""):
    """Whole pipeline.config: the model, how it is trained and evaluated, and its data."""

    preset: str = field("", "Name of a configuration that comes with Boxwright, which this one changes (an extension "
        "of Boxwright; docs/configuration.md).")
    num_classes: UInt32 = number(0, "[0, 100000]", "Ours: num_classes of the model, whatever its family.")
    model: DetectionModel | None = field(None,
        "The detection model: architecture, anchors, losses and post-processing.")
    train_config: TrainConfig | None = field(None,
        "Training settings: batch size, optimizer, augmentation, starting checkpoint, step count.")
    train_input_reader: InputReader | None = field(None, "Where the training examples and label map are read from.")
    eval_config: EvalConfig | None = field(None, "Evaluation settings: metrics, batch size, visualization.")
    eval_input_reader: list[InputReader] = field([],
        "Where evaluation examples are read from; repeat for several evaluation sets.")
    graph_rewriter: GraphRewriter | None = field(None,
        "Graph changes such as quantization-aware training.", no_effect=QUANTIZATION)
    pedigree: list[WeightsOrigin] = field([], "Ours: the published weights that the model's own descend from; written "
        "when a run begins, and kept in its checkpoints and exports.")

    rules = (
        refuse("train_input_reader.load_instance_masks",
            "the detector learns masks; set it to true, and mask_type to what the records have",
            when=lambda c: learns_masks(c) and not _reads_masks(c.train_input_reader)),
        refuse("train_input_reader.num_keypoints",
            "{train_input_reader.num_keypoints}, but keypoint_box_coder has "
            "{model.ssd.box_coder.keypoint_box_coder.num_keypoints}; set it to the same",
            when=lambda c: c.train_config and c.train_input_reader
            and _coded_keypoints(c) not in (0, c.train_input_reader.num_keypoints)),
        refuse("train_input_reader.num_keypoints",
            "the detector learns keypoints; set it to how many the records have of each object",
            when=lambda c: _learns_keypoints(c) and c.train_input_reader and not c.train_input_reader.num_keypoints),
        refuse("train_input_reader.load_context_features", "the detector attends to other images' features; set it "
            "to true (boxwright context build writes such records)",
            when=lambda c: _attends(c) and c.train_input_reader and not c.train_input_reader.load_context_features),
        refuse("train_input_reader.load_track_id",
            "the detector learns temporal offsets, which records hold with their tracks; set it to true",
            when=lambda c: _learns(c, "temporal_offset_task") and c.train_input_reader
            and c.train_input_reader.tf_record_input_reader and not c.train_input_reader.load_track_id),
        refuse("train_input_reader.load_track_id", "the detector learns identities; set it to true",
            when=lambda c: _learns(c, "track_estimation_task") and c.train_input_reader
            and not c.train_input_reader.load_track_id),
        refuse("train_input_reader.load_dense_pose", "the detector learns DensePose; set it to true",
            when=lambda c: _learns(c, "densepose_estimation_task") and c.train_input_reader
            and not c.train_input_reader.load_dense_pose),
        refuse("train_input_reader.load_dense_pose",
            "a flip of DensePose's points has to know the body's symmetry: set dense_pose_symmetry in the flips of "
            "train_config.data_augmentation_options, or remove them",
            when=lambda c: c.train_input_reader and c.train_input_reader.load_dense_pose and _flips_blindly(c)),
        Rule("train_input_reader.num_additional_channels", _more_channels_problem),
        Rule("train_config.multi_scale", lambda config: _multi_scale_problem(config)),
        refuse("train_input_reader.load_keypoint_depth_features", "a keypoint task predicts depths; set it to true",
            when=lambda c: _learns_depths(c) and c.train_input_reader
            and not c.train_input_reader.load_keypoint_depth_features),
        refuse("eval_config.force_no_resize", "only model.ssd takes images of any size",
            when=lambda c: c.eval_config and c.eval_config.force_no_resize and c.model and not c.model.ssd),
        refuse("train_config.use_multiclass_scores", "set train_input_reader.load_multiclass_scores too",
            when=lambda c: c.train_config and c.train_config.use_multiclass_scores and c.train_input_reader
            and not c.train_input_reader.load_multiclass_scores),
    )

    _notes: list[str]

    @property
    def notes(self) -> list[str]:
        """Decisions made while the configuration was read, in sentences for the user."""
        notes: list[str] = self.__dict__.setdefault("_notes", [])
        return notes


def image_channels(config: TrainEvalPipelineConfig) -> int:
    """Return the channels of a configuration's images, which its readers say; 3 without readers."""
    readers = [reader for reader in (config.train_input_reader, *config.eval_input_reader) if reader is not None]
    return 3 + max((reader.num_additional_channels for reader in readers), default=0)


def white_level(config: TrainEvalPipelineConfig) -> float:
    """Return the value that is white in images that are not of 8 bits; 0 if the training data state none."""
    return config.train_input_reader.white_level if config.train_input_reader is not None else 0.0


def _multi_scale_problem(config: TrainEvalPipelineConfig) -> str:
    """Return why inputs cannot have several sizes; empty without a resizer, whose absence is reported elsewhere."""
    scales = config.train_config.multi_scale if config.train_config is not None else None
    family = config.model.chosen("model") if config.model is not None else None
    resizer = getattr(family, "image_resizer", None)
    if scales is None or resizer is None:
        return ""
    fixed = resizer.fixed_shape_resizer
    if fixed is None:
        return "inputs have one size to be scaled only with a fixed_shape_resizer"
    side, multiple = max(fixed.height, fixed.width), scales.multiple_of
    unit = getattr(family, "side_unit", 1)
    if multiple % unit:
        return f"sides would be multiples of {multiple}, and inputs need multiples of {unit}; set multiple_of: {unit}"
    low, high = scales.min_scale * side, scales.max_scale * side
    sizes = {number * multiple for number in range(math.ceil(low / multiple), math.floor(high / multiple) + 1)} - {side}
    other = f" beside {side}" if side % multiple == 0 else ""
    where = f"{low:g} to {high:g} pixels"
    return "" if sizes else f"no multiple of {multiple}{other} lies in {where}; widen the range of scales"


def _trained(config: TrainEvalPipelineConfig, family: str) -> Any:
    """Return the message of a family of detectors, if one is to be trained; else None."""
    return getattr(config.model, family) if config.model is not None and config.has("train_config") else None


def learns_masks(config: TrainEvalPipelineConfig) -> bool:
    """Tell whether a detector is to be trained that learns masks, which the readers must then load."""
    two_stage, center_net = _trained(config, "faster_rcnn"), _trained(config, "center_net")
    rf_detr = _trained(config, "rf_detr")
    if center_net is not None:
        deep = center_net.deepmac_mask_estimation
        return center_net.mask_estimation_task is not None or (deep is not None and deep.task_loss_weight > 0)
    return (two_stage is not None and two_stage.number_of_stages == 3) or (rf_detr is not None and rf_detr.has("masks"))


def _flips_blindly(config: TrainEvalPipelineConfig) -> bool:
    steps = config.train_config.data_augmentation_options if config.train_config else ()
    flips = [flip for step in steps for flip in (step.random_horizontal_flip, step.random_vertical_flip) if flip]
    return any(flip.probability > 0 and not flip.dense_pose_symmetry for flip in flips)


def _learns(config: TrainEvalPipelineConfig, task: str) -> bool:
    """Tell whether a CenterNet learns a task."""
    center_net = _trained(config, "center_net")
    return center_net is not None and center_net.has(task)


def _learns_keypoints(config: TrainEvalPipelineConfig) -> bool:
    center_net = _trained(config, "center_net")
    if center_net is None:
        return False
    deep = center_net.deepmac_mask_estimation
    return bool(center_net.keypoint_estimation_task) or (
        deep is not None and deep.pointly_supervised_keypoint_loss_weight > 0
    )


def _attends(config: TrainEvalPipelineConfig) -> bool:
    two_stage = _trained(config, "faster_rcnn")
    context = two_stage.context_config if two_stage is not None else None
    return context is not None and context.use_long_term_attention


def _learns_depths(config: TrainEvalPipelineConfig) -> bool:
    center_net = _trained(config, "center_net")
    return center_net is not None and any(task.predict_depth for task in center_net.keypoint_estimation_task)


def _reads_masks(reader: InputReader | None) -> bool:
    """Tell whether masks are read; true without a reader, whose absence is reported elsewhere."""
    coco = reader.coco_input_reader if reader is not None else None
    return reader is None or reader.load_instance_masks or (coco is not None and coco.load_masks)


def _coded_keypoints(config: TrainEvalPipelineConfig) -> int:
    """Return how many keypoints SSD's box coder writes; 0 where it is another."""
    ssd = config.model.ssd if config.model is not None else None
    coder = ssd.box_coder.keypoint_box_coder if ssd is not None and ssd.box_coder is not None else None
    return coder.num_keypoints if coder is not None else 0
