"""The support table: what becomes of each field of a configuration.

Every field is *honoured* (some builder reads it), *without effect* (for a reason), or *refused* (with
what to do). This file is the one place that says which; a test holds it to the builders.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

from boxwright.config.message import Message, field_specs
from boxwright.errors import ConfigError

__all__ = ["FieldReport", "Status", "field_status", "refuse_unsupported", "report"]

_DEFAULT = "set to its default"

Verdict = Literal["honoured", "without effect", "refused"]


@dataclass(frozen=True)
class Status:
    """What becomes of a field.

    Attributes:
        verdict: Which of the three.
        note: Why it is without effect, or what to do where it is refused; or what to know.
    """

    verdict: Verdict
    note: str = ""


@dataclass(frozen=True)
class FieldReport:
    """What becomes of a field that is set in a configuration.

    Attributes:
        path: The field's path.
        status: What becomes of it.
        location: Where it was set; empty where that was in Python.
    """

    path: str
    status: Status
    location: str = ""

    @property
    def worth_saying(self) -> bool:
        """Whether a user should hear of it: it is not simply honoured."""
        return bool(self.status.note) and self.status.note != _DEFAULT

    def __str__(self) -> str:
        where = f"{self.location}: " if self.location else ""
        return f"{where}{self.path}: {self.status.verdict}: {self.status.note}"


# Message → its honoured fields.
HONOURED: dict[str, str] = {
    "TrainEvalPipelineConfig": "model train_config train_input_reader eval_config eval_input_reader",
    "DetectionModel": "ssd refinedet",
    "RefineDet": "num_classes image_resizer feature_extractor conv_hyperparams anchor_generator box_coder "
    "anchor_refinement transfer_connection residual_body matcher loss post_processing inference_preset "
    "freeze_batchnorm",
    "AnchorRefinement": "matcher loss objectness_threshold object_anchors",
    "TransferConnection": "depth deconvolution_kernel_size conv_hyperparams",
    "ResidualBody": "width depth conv_hyperparams",
    "Ssd": "num_classes image_resizer feature_extractor box_coder matcher similarity_calculator "
    "encode_background_as_zeros negative_class_weight box_predictor anchor_generator post_processing "
    "normalize_loss_by_num_matches normalize_loc_loss_by_codesize loss freeze_batchnorm add_background_class "
    "explicit_background_class use_confidences_as_targets implicit_example_weight",
    "SsdFeatureExtractor": "type depth_multiplier min_depth conv_hyperparams use_depthwise use_explicit_padding fpn "
    "bifpn pad_to_multiple override_base_feature_extractor_hyperparams num_layers",
    "BidirectionalFeaturePyramidNetworks": "min_level max_level num_iterations num_filters combine_method",
    "FeaturePyramidNetworks": "min_level max_level additional_layer_depth",
    "ImageResizer": "fixed_shape_resizer keep_aspect_ratio_resizer identity_resizer conditional_shape_resizer "
    "pad_to_multiple_resizer",
    "ConditionalShapeResizer": "condition size_threshold resize_method convert_to_grayscale",
    "PadToMultipleResizer": "multiple convert_to_grayscale",
    "FixedShapeResizer": "height width resize_method convert_to_grayscale",
    "KeepAspectRatioResizer": "min_dimension max_dimension resize_method pad_to_max_dimension convert_to_grayscale "
    "per_channel_pad_value",
    "Hyperparams": "regularizer initializer activation batch_norm sync_batch_norm regularize_depthwise force_use_bias",
    "Regularizer": "l1_regularizer l2_regularizer",
    "L1Regularizer": "weight",
    "L2Regularizer": "weight",
    "Initializer": "truncated_normal_initializer variance_scaling_initializer random_normal_initializer "
    "keras_initializer_by_name",
    "TruncatedNormalInitializer": "mean stddev",
    "VarianceScalingInitializer": "factor uniform mode",
    "RandomNormalInitializer": "mean stddev",
    "BatchNorm": "decay center scale epsilon",
    "AnchorGenerator": "grid_anchor_generator ssd_anchor_generator multiscale_anchor_generator "
    "flexible_grid_anchor_generator",
    "FlexibleGridAnchorGenerator": "anchor_grid",
    "AnchorGrid": "base_sizes aspect_ratios height_stride width_stride height_offset width_offset",
    "GridAnchorGenerator": "height width height_stride width_stride height_offset width_offset scales aspect_ratios",
    "SsdAnchorGenerator": "num_layers min_scale max_scale scales aspect_ratios interpolated_scale_aspect_ratio "
    "reduce_boxes_in_lowest_layer base_anchor_height base_anchor_width height_stride width_stride height_offset "
    "width_offset",
    "MultiscaleAnchorGenerator": "min_level max_level anchor_scale aspect_ratios scales_per_octave",
    "BoxPredictor": "convolutional_box_predictor weight_shared_convolutional_box_predictor",
    "ConvolutionalBoxPredictor": "conv_hyperparams min_depth max_depth num_layers_before_predictor use_dropout "
    "dropout_keep_probability kernel_size box_code_size apply_sigmoid_to_scores class_prediction_bias_init "
    "use_depthwise box_encodings_clip_range",
    "ConvolutionalBoxPredictor.BoxEncodingsClipRange": "min max",
    "WeightSharedConvolutionalBoxPredictor": "conv_hyperparams num_layers_before_predictor depth kernel_size "
    "box_code_size class_prediction_bias_init use_dropout dropout_keep_probability share_prediction_tower use_depthwise "
    "score_converter box_encodings_clip_range apply_conv_hyperparams_to_heads apply_conv_hyperparams_pointwise",
    "WeightSharedConvolutionalBoxPredictor.BoxEncodingsClipRange": "min max",
    "PostProcessing": "batch_non_max_suppression score_converter logit_scale calibration_config",
    "BatchNonMaxSuppression": "score_threshold iou_threshold max_detections_per_class max_total_detections "
    "soft_nms_sigma use_class_agnostic_nms max_classes_per_detection use_combined_nms change_coordinate_frame "
    "use_hard_nms use_static_shapes",
    "CalibrationConfig": "function_approximation class_id_function_approximations sigmoid_calibration "
    "class_id_sigmoid_calibrations temperature_scaling_calibration",
    "FunctionApproximation": "x_y_pairs",
    "XYPairs": "x_y_pair",
    "XYPairs.XYPair": "x y",
    "ClassIdFunctionApproximations": "class_id_xy_pairs_map",
    "ClassIdFunctionApproximations.ClassIdXyPairsMapEntry": "key value",
    "SigmoidCalibration": "sigmoid_parameters",
    "SigmoidParameters": "a b",
    "ClassIdSigmoidCalibrations": "class_id_sigmoid_parameters_map",
    "ClassIdSigmoidCalibrations.ClassIdSigmoidParametersMapEntry": "key value",
    "TemperatureScalingCalibration": "scaler",
    "BoxCoder": "faster_rcnn_box_coder mean_stddev_box_coder square_box_coder keypoint_box_coder",
    "MeanStddevBoxCoder": "stddev",
    "SquareBoxCoder": "y_scale x_scale length_scale",
    "KeypointBoxCoder": "num_keypoints y_scale x_scale height_scale width_scale",
    "FasterRcnnBoxCoder": "y_scale x_scale height_scale width_scale",
    "Matcher": "argmax_matcher bipartite_matcher bipartite_argmax_matcher",
    "BipartiteArgmaxMatcher": "matched_threshold unmatched_threshold",
    "ArgMaxMatcher": "matched_threshold unmatched_threshold ignore_thresholds negatives_lower_than_unmatched "
    "force_match_for_each_row",
    "RegionSimilarityCalculator": "iou_similarity ioa_similarity neg_sq_dist_similarity thresholded_iou_similarity",
    "ThresholdedIouSimilarity": "iou_threshold",
    "Loss": "localization_loss classification_loss hard_example_miner classification_weight localization_weight "
    "random_example_sampler expected_loss_weights min_num_negative_samples desired_negative_sampling_ratio",
    "RandomExampleSampler": "positive_sample_fraction",
    "LocalizationLoss": "weighted_l2 weighted_smooth_l1 weighted_iou weighted_giou l1_localization_loss",
    "WeightedSmoothL1LocalizationLoss": "delta",
    "ClassificationLoss": "weighted_sigmoid weighted_softmax weighted_sigmoid_focal weighted_logits_softmax "
    "bootstrapped_sigmoid penalty_reduced_logistic_focal_loss weighted_dice_classification_loss",
    "WeightedSoftmaxClassificationAgainstLogitsLoss": "logit_scale",
    "BootstrappedSigmoidClassificationLoss": "alpha hard_bootstrap",
    "PenaltyReducedLogisticFocalLoss": "alpha beta",
    "WeightedDiceClassificationLoss": "squared_normalization is_prediction_probability",
    "SigmoidFocalClassificationLoss": "gamma alpha",
    "WeightedSoftmaxClassificationLoss": "logit_scale",
    "HardExampleMiner": "num_hard_examples iou_threshold loss_type max_negatives_per_positive min_negatives_per_image",
    "TrainConfig": "batch_size data_augmentation_options optimizer gradient_clipping_by_norm fine_tune_checkpoint "
    "fine_tune_checkpoint_type from_detection_checkpoint num_steps add_regularization_loss use_bfloat16 "
    "keep_checkpoint_every_n_hours bias_grad_multiplier update_trainable_variables freeze_variables "
    "merge_multiple_label_boxes use_multiclass_scores summarize_gradients use_float16 "
    "gradient_accumulation_steps freeze_stage fine_tune_checkpoint_channels",
    "FreezeStage": "until_step variables",
    "CaffeDistort": "probability brightness min_contrast max_contrast min_saturation max_saturation hue",
    "RandomExpand": "probability max_ratio colour",
    "OverlapCrop": "min_overlap min_scale max_scale min_aspect_ratio max_aspect_ratio",
    "RandomInterpolationResize": "height width",
    "PreprocessingStep": "random_horizontal_flip random_vertical_flip random_rotation90 random_adjust_brightness "
    "random_adjust_contrast random_adjust_hue random_adjust_saturation random_distort_color random_crop_image "
    "ssd_random_crop caffe_distort random_expand overlap_crop random_interpolation_resize",
    "RandomHorizontalFlip": "probability keypoint_flip_permutation",
    "RandomVerticalFlip": "probability keypoint_flip_permutation",
    "RandomRotation90": "probability keypoint_rot_permutation",
    "RandomAdjustBrightness": "max_delta",
    "RandomAdjustContrast": "min_delta max_delta",
    "RandomAdjustHue": "max_delta",
    "RandomAdjustSaturation": "min_delta max_delta",
    "RandomDistortColor": "color_ordering",
    "RandomCropImage": "min_object_covered min_aspect_ratio max_aspect_ratio min_area max_area overlap_thresh clip_boxes "
    "random_coef",
    "SSDRandomCrop": "operations",
    "SSDRandomCropOperation": "min_object_covered min_aspect_ratio max_aspect_ratio min_area max_area overlap_thresh "
    "clip_boxes random_coef",
    "Optimizer": "rms_prop_optimizer momentum_optimizer adam_optimizer adamw_optimizer use_moving_average moving_average_decay",
    "RMSPropOptimizer": "learning_rate momentum_optimizer_value decay epsilon",
    "MomentumOptimizer": "learning_rate momentum_optimizer_value",
    "AdamOptimizer": "learning_rate epsilon",
    "AdamWOptimizer": "learning_rate weight_decay beta1 beta2 epsilon",
    "LearningRate": "constant_learning_rate exponential_decay_learning_rate manual_step_learning_rate "
    "cosine_decay_learning_rate",
    "ConstantLearningRate": "learning_rate",
    "ExponentialDecayLearningRate": "initial_learning_rate decay_steps decay_factor staircase burnin_learning_rate "
    "burnin_steps min_learning_rate",
    "ManualStepLearningRate": "initial_learning_rate schedule warmup",
    "ManualStepLearningRate.LearningRateSchedule": "step learning_rate",
    "CosineDecayLearningRate": "learning_rate_base total_steps warmup_learning_rate warmup_steps hold_base_rate_steps",
    "InputReader": "name label_map_path shuffle num_epochs sample_1_of_n_examples tf_record_input_reader coco_input_reader "
    "voc_input_reader num_keypoints sample_from_datasets_weights max_number_of_boxes load_multiclass_scores "
    "class_weight group_by_aspect_ratio",
    "ClassWeight": "name weight",
    "TFRecordInputReader": "input_path",
    "CocoInputReader": "annotations image_folder allow_paths_outside",
    "VocInputReader": "root image_set allow_paths_outside",
    "EvalConfig": "batch_size num_visualizations metrics_set use_moving_averages min_score_threshold "
    "max_num_boxes_to_visualize include_metrics_per_category recall_lower_bound recall_upper_bound",
    "StringIntLabelMap": "item",
    "StringIntLabelMapItem": "name id display_name keypoints",
    "StringIntLabelMapItem.KeypointMap": "id label",
}

# What to know of a field that is honoured.
NOTES: dict[str, str] = {
    "RMSPropOptimizer.decay": "as TF2 reads it: the rate is divided by 1 + decay × step "
    "(TF1 read it as the decay of the average of squares)",
    "InputReader.max_number_of_boxes": "where it is set, training uses the first so many boxes of an image; not set, all; "
    "evaluation uses all always",
    "TrainConfig.keep_checkpoint_every_n_hours": "in TF2 without effect; here as in TF1",
    "TrainConfig.bias_grad_multiplier": "in TF2 without effect; here as in TF1",
    "TrainConfig.freeze_variables": "in TF2 without effect; here as in TF1, over TF2's names, ours, and both below "
    "FeatureExtractor/ and BoxPredictor/",
    "TrainConfig.update_trainable_variables": "in TF2 without effect; here as in TF1, over TF2's names and ours",
    "TrainConfig.summarize_gradients": "in TF2 without effect; here as in TF1",
    "LocalizationLoss.weighted_iou": "computed of decoded boxes (TF's SSD compares codes as if they were corners)",
    "LocalizationLoss.weighted_giou": "computed of decoded boxes (TF's SSD compares codes as if they were corners)",
    "LocalizationLoss.l1_localization_loss": "weighted for each anchor (TF's SSD stops with an error)",
    "Loss.expected_loss_weights": "as its description says; the functions that it names are not in TF's public code",
    "Ssd.explicit_background_class": "num_classes counts the background, and the label map does not",
    "CalibrationConfig.sigmoid_calibration": "as its description says; TF's builder stops with an error",
    "CalibrationConfig.class_id_sigmoid_calibrations": "as its description says; TF's builder stops with an error",
    "BidirectionalFeaturePyramidNetworks.combine_method": "attention computes what sum does, as in TF, whose softmax "
    "runs over one element",
}

_QUEUE = "tuning of TensorFlow's input queues"
_TF1 = "of TF1's training on parameter servers"
_PER_ANCHOR = "losses are per anchor always"
_LEGACY_EVAL = "of TF1's separate evaluator"
_BOXES_ONLY = "the detectors there are predict boxes only"
_QUANTIZATION = "quantization-aware training is of TF1 only; the network is trained and run in floating point"
_SHUFFLED = "each epoch is shuffled as a whole"

# "Message.field" → why it changes nothing.
NO_EFFECT: dict[str, str] = {
    "Hyperparams.op": "only TF-Slim's layers read it",
    "BatchNorm.train": "TF2 does not read it; freeze_batchnorm is what freezes",
    "Ssd.inplace_batchnorm_update": "statistics are updated in place always",
    "Ssd.return_raw_detections_during_predict": "raw predictions are what predict() returns always",
    "MultiscaleAnchorGenerator.normalize_coordinates": "anchors are in pixels throughout",
    "FlexibleGridAnchorGenerator.normalize_coordinates": "anchors are in pixels throughout",
    "BidirectionalFeaturePyramidNetworks.use_native_resize_op": "the same pixels by another operation",
    "SsdFeatureExtractor.replace_preprocessor_with_placeholder": "of TF1's export only",
    "BipartiteMatcher.use_matmul_gather": "the same matches by a matrix product, for TPU",
    "XYPairs.training_data_type": "a note of where the curve comes from",
    "Loss.equalization_loss": "TF stores it and never reads it",
    "Loss.EqualizationLoss.weight": "TF stores it and never reads it",
    "Loss.EqualizationLoss.exclude_prefixes": "TF stores it and never reads it",
    "TrainEvalPipelineConfig.graph_rewriter": _QUANTIZATION,
    "GraphRewriter.quantization": _QUANTIZATION,
    "Quantization.delay": _QUANTIZATION,
    "Quantization.weight_bits": _QUANTIZATION,
    "Quantization.activation_bits": _QUANTIZATION,
    "Quantization.symmetric": _QUANTIZATION,
    "BatchNonMaxSuppression.use_partitioned_nms": "the same detections by another algorithm, for TPU",
    "BatchNonMaxSuppression.use_cpu_nms": "placement of an operation only",
    "ArgMaxMatcher.use_matmul_gather": "the same matches by a matrix product, for TPU",
    "WeightedSigmoidClassificationLoss.anchorwise_output": _PER_ANCHOR,
    "WeightedSoftmaxClassificationLoss.anchorwise_output": _PER_ANCHOR,
    "SigmoidFocalClassificationLoss.anchorwise_output": _PER_ANCHOR,
    "WeightedSoftmaxClassificationAgainstLogitsLoss.anchorwise_output": _PER_ANCHOR,
    "BootstrappedSigmoidClassificationLoss.anchorwise_output": _PER_ANCHOR,
    "WeightedL2LocalizationLoss.anchorwise_output": _PER_ANCHOR,
    "WeightedSmoothL1LocalizationLoss.anchorwise_output": _PER_ANCHOR,
    "TrainConfig.sync_replicas": _TF1,
    "TrainConfig.replicas_to_aggregate": _TF1,
    "TrainConfig.startup_delay_steps": _TF1,
    "TrainConfig.run_fine_tune_checkpoint_dummy_computation": "TensorFlow's creation of variables",
    "TrainConfig.fine_tune_checkpoint_version": "the kind of a checkpoint is seen from its files",
    "TrainConfig.load_all_detection_checkpoint_vars": "TF2 does not read it; fine_tune_checkpoint_type decides",
    "TrainConfig.batch_queue_capacity": _QUEUE,
    "TrainConfig.num_batch_queue_threads": _QUEUE,
    "TrainConfig.prefetch_queue_capacity": _QUEUE,
    "TrainConfig.max_number_of_boxes": "TF2 does not read it; train_input_reader.max_number_of_boxes is what cuts",
    "TrainConfig.unpad_groundtruth_tensors": "padding never counts",
    "TrainConfig.retain_original_images": "nothing in training reads them; input images are logged from the batch",
    "InputReader.shuffle_buffer_size": _SHUFFLED,
    "InputReader.filenames_shuffle_buffer_size": _SHUFFLED,
    "InputReader.num_readers": _SHUFFLED,
    "InputReader.read_block_length": _SHUFFLED,
    "InputReader.num_parallel_batches": _QUEUE,
    "InputReader.num_prefetch_batches": _QUEUE,
    "InputReader.queue_capacity": _QUEUE,
    "InputReader.min_after_dequeue": _QUEUE,
    "InputReader.prefetch_size": _QUEUE,
    "InputReader.num_parallel_map_calls": _QUEUE,
    "InputReader.drop_remainder": "the training stream has no last batch; evaluation uses every image",
    "InputReader.use_display_name": "class texts are looked up by name and by display name",
    "InputReader.include_source_id": "samples carry their id always",
    "InputReader.load_instance_masks": _BOXES_ONLY,
    "InputReader.mask_type": _BOXES_ONLY,
    "InputReader.keypoint_type_weight": _BOXES_ONLY,
    "InputReader.load_dense_pose": _BOXES_ONLY,
    "InputReader.load_keypoint_depth_features": _BOXES_ONLY,
    "InputReader.use_keypoint_label_map": _BOXES_ONLY,
    "InputReader.load_track_id": _BOXES_ONLY,
    "InputReader.frame_index": "only read for sequence examples",
    "CocoInputReader.load_masks": _BOXES_ONLY,
    "EvalConfig.num_examples": "TF2 does not read it: all examples are evaluated (see sample_1_of_n_examples)",
    "EvalConfig.eval_interval_secs": _LEGACY_EVAL,
    "EvalConfig.max_evals": _LEGACY_EVAL,
    "EvalConfig.save_graph": _LEGACY_EVAL,
    "EvalConfig.eval_master": _LEGACY_EVAL,
    "EvalConfig.visualization_export_dir": "boxwright evaluate --out says where pictures go",
    "EvalConfig.export_path": "boxwright evaluate --out says where detections go",
    "EvalConfig.keep_image_id_for_visualization_export": "pictures are named by image id always",
    "EvalConfig.visualize_groundtruth_boxes": "truth is drawn beside the detections always",
    "EvalConfig.groundtruth_box_visualization_color": "each class has a colour of its own",
    "EvalConfig.retain_original_images": "pictures are of the original images always",
    "EvalConfig.retain_original_image_additional_channels": "only three channels are read",
    "EvalConfig.use_dummy_loss_in_eval": "TF2 does not read it; the losses are computed",
    "EvalConfig.image_classes_field_map_empty_to_ones": "classes that were verified are read as they are",
    "StringIntLabelMapItem.frequency": "only read by the LVIS evaluator",
    "StringIntLabelMapItem.instance_count": "only read by the LVIS evaluator",
    "StringIntLabelMapItem.ancestor_ids": "only read with expand_labels_hierarchy",
    "StringIntLabelMapItem.descendant_ids": "only read with expand_labels_hierarchy",
}

_LATER = "not supported yet; remove it"
_SSD_ONLY = "only model { ssd } and model { refinedet } are supported yet"
_OTHER_HEAD = "use convolutional_box_predictor or weight_shared_convolutional_box_predictor"
_OTHER_STEP = "not supported yet; remove the step, or use one of: " + HONOURED["PreprocessingStep"].replace(" ", ", ")

# "Message.field", or a whole message → what to do instead.
REFUSED: dict[str, str] = {
    "DetectionModel": _SSD_ONLY,
    "FasterRcnn": _SSD_ONLY,
    "FasterRcnnFeatureExtractor": _SSD_ONLY,
    "Context": _SSD_ONLY,
    "ExperimentalModel": _SSD_ONLY,
    "CenterNet": _SSD_ONLY,
    "CenterNetFeatureExtractor": _SSD_ONLY,
    "Ssd": _LATER,
    "Ssd.MaskHead": _LATER,
    "SsdFeatureExtractor": "of a feature extractor that is not supported; remove it",
    "Hyperparams.group_norm": "use batch_norm",
    "BoxPredictor": _OTHER_HEAD,
    "MaskRCNNBoxPredictor": _OTHER_HEAD,
    "RfcnBoxPredictor": _OTHER_HEAD,
    "PostProcessing": _LATER,
    "BatchNonMaxSuppression": _LATER,
    "Loss": _LATER,
    "TrainConfig": _LATER,
    "PreprocessingStep": _OTHER_STEP,
    "InputReader": "not supported; use tf_record_input_reader, coco_input_reader or voc_input_reader",
    "EvalConfig": _LATER,
    "ParameterizedMetric": "use metrics_set",
    "CocoKeypointMetrics": "use metrics_set",
    "CocoKeypointMetrics.KeypointLabelToSigmasEntry": "use metrics_set",
    "EvalConfig.SuperCategoriesEntry": _LATER,
    "KeypointEdge": _LATER,
    # Messages that only a refused preprocessing step holds.
    **dict.fromkeys(
        """
        NormalizeImage RandomPixelValueScale RandomImageScale RandomRGBtoGray RandomJitterBoxes RandomPadImage
        RandomCropPadImage RandomCropToAspectRatio RandomBlackPatches RandomResizeMethod ResizeImage
        SubtractChannelMean SSDRandomCropPad SSDRandomCropPadOperation SSDRandomCropFixedAspectRatio
        SSDRandomCropFixedAspectRatioOperation SSDRandomCropPadFixedAspectRatio
        SSDRandomCropPadFixedAspectRatioOperation ConvertClassLogitsToSoftmax RandomAbsolutePadImage
        RandomSelfConcatImage AutoAugmentImage DropLabelProbabilistically RemapLabels RandomJpegQuality
        RandomDownscaleToTargetPixels RandomPatchGaussian RandomSquareCropByScale RandomScaleCropAndPadToSquare
        AdjustGamma
        """.split(),  # noqa: SIM905  # a table is easier to read than thirty quoted lines
        _OTHER_STEP,
    ),
}


def field_status(message: str, field: str) -> Status:
    """Say what becomes of a field.

    Args:
        message: The message's protobuf name, such as "Ssd" or "Ssd.MaskHead".
        field: The field.

    Returns:
        Its status.

    Raises:
        KeyError: Where the table has no entry; a test shows that there is no such field.
    """
    key = f"{message}.{field}"
    if field in HONOURED.get(message, "").split():
        return Status("honoured", NOTES.get(key, ""))
    if key in NO_EFFECT:
        return Status("without effect", NO_EFFECT[key])
    for owner in (key, message, message.split(".")[0]):
        if owner in REFUSED:
            return Status("refused", REFUSED[owner])
    raise KeyError(key)


def report(message: Message, path: str = "") -> Iterator[FieldReport]:
    """Report every field that is set in a message and below.

    What lies below a refused field is refused with it. A refused switch that is set to its default
    asks for nothing, and counts as honoured.

    Args:
        message: The message.
        path: Where it sits.

    Yields:
        One report a set field, in the order of declaration.
    """
    yield from _report(message, path, None)


def _report(message: Message, path: str, inherited: Status | None) -> Iterator[FieldReport]:
    specs = field_specs(type(message))
    for name, value in message.present().items():
        status = inherited or field_status(message.proto_name, name)
        if status.verdict == "refused" and not inherited and _is_default(message, name):
            status = Status("honoured", _DEFAULT)
        where = f"{path}.{name}" if path else name
        location = message.location(name)
        yield FieldReport(where, status, str(location) if location else "")
        if specs[name].kind == "message":
            below = status if status.verdict != "honoured" else None
            for number, child in enumerate(value if specs[name].repeated else [value]):
                index = f"[{number}]" if specs[name].repeated else ""
                yield from _report(child, where + index, below)


def _is_default(message: Message, name: str) -> bool:
    spec = field_specs(type(message))[name]
    if spec.kind == "message" or spec.repeated:
        return False
    return bool(getattr(message, name) == type(message).model_fields[name].default)


def refuse_unsupported(message: Message, path: str) -> None:
    """Raise if a message asks for anything that is not supported.

    Args:
        message: The message.
        path: Where it sits.

    Raises:
        ConfigError: Naming every refused field, outermost only, with what to do.
    """
    refused: list[FieldReport] = []
    for found in report(message, path):
        covered = any(found.path.startswith((f"{other.path}.", f"{other.path}[")) for other in refused)
        if found.status.verdict == "refused" and not covered:
            refused.append(found)
    if refused:
        raise ConfigError("\n".join(str(found) for found in refused))
