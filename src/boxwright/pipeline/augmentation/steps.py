"""`PreprocessingStep`: data augmentation."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from boxwright.base.files import as_here
from boxwright.config.support import refuse_unsupported
from boxwright.data.augmentation.autoaugment import POLICIES, AutoAugment, Operation
from boxwright.data.augmentation.caffe import (
    CaffeDistort,
    OverlapCrop,
    RandomExpand,
    RandomInterpolationResize,
)
from boxwright.data.augmentation.color import (
    AdjustGamma,
    DistortColor,
    Gray,
    MapRange,
    RandomBrightness,
    RandomContrast,
    RandomGray,
    RandomHue,
    RandomPixelScale,
    RandomSaturation,
    SubtractChannelMean,
)
from boxwright.data.augmentation.corruption import RandomBlackPatches, RandomJpegQuality, RandomPatchGaussian
from boxwright.data.augmentation.crop import SSD_CROPS, RandomCrop, RandomCropToAspectRatio, RandomSquareCrop
from boxwright.data.augmentation.flip import (
    RandomHorizontalFlip,
    RandomRotation90,
    RandomSelfConcat,
    RandomVerticalFlip,
)
from boxwright.data.augmentation.functional.surface import SurfaceSymmetry
from boxwright.data.augmentation.labels import JITTERS, DropLabel, JitterBoxes, RemapLabels, ScoresFromLogits, as_it_is
from boxwright.data.augmentation.pad import (
    RandomAbsolutePad,
    RandomCropPad,
    RandomDownscale,
    RandomPad,
    RandomPadToAspectRatio,
    RandomResizeMethod,
    RandomScale,
    RandomScaleCropPad,
    ResizeTo,
)
from boxwright.data.augmentation.transform import Chain, DrawnOthers, NoSampleProvider, OneOf, Stages, Transform
from boxwright.data.dataset import Dataset
from boxwright.data.dense_pose import read_symmetry
from boxwright.families.shared.family import build_chosen, require
from boxwright.nn.ops.resize import resize_area, resize_bicubic, resize_bilinear, resize_nearest
from boxwright.pipeline import messages as m
from boxwright.pipeline.augmentation.beyond_tf import MIXING_STEPS, SINGLE_STEPS, build_user_augmentation

_CROPS = (
    m.RandomCropImage
    | m.RandomCropPadImage
    | m.SSDRandomCropOperation
    | m.SSDRandomCropPadOperation
    | m.SSDRandomCropPadFixedAspectRatioOperation
)
_PADS = m.RandomCropPadImage | m.SSDRandomCropPadOperation | m.SSDRandomCropPadFixedAspectRatio
# TF's default if the field is not set, which differs from its message's.
_LARGEST_TARGET = 800_000


def build_augmentation(config: m.TrainEvalPipelineConfig, dataset: Dataset | None = None) -> Stages:
    """Build the augmentation of training samples, with the training steps of `from_step` and `until_step`.

    Args:
        dataset: The data; see `build_steps`.
    """
    steps = require(config.train_config, config, "train_config").data_augmentation_options
    built = [_build_alone(step, _LabelLookup(dataset), dataset) for step in steps]
    changes = sorted({0, *(step.from_step for step in steps), *(step.until_step for step in steps)})
    stages = [
        _chained(
            [(step, transform) for step, transform in zip(steps, built, strict=True) if in_use(step, change)], dataset
        )
        for change in changes
    ]
    return Stages(changes, stages)


def in_use(config: m.PreprocessingStep, step: int) -> bool:
    """Tell whether a preprocessing step is taken at a training step, counted from 0."""
    return config.from_step <= step and not (config.until_step and step >= config.until_step)


def build_steps(steps: Sequence[m.PreprocessingStep], dataset: Dataset | None = None) -> Chain:
    """Build a chain of transforms, all in use at once.

    Args:
        dataset: The data, whose classes the ids of `drop_label_probabilistically` and `remap_labels` name, and from
            which steps that mix samples draw others. Without it, ids count from 1, and steps that mix samples or run
            user code are checked but cannot be called.
    """
    return _chained([(step, _build_alone(step, _LabelLookup(dataset), dataset)) for step in steps], dataset)


def _chained(steps: Sequence[tuple[m.PreprocessingStep, Transform | None]], dataset: Dataset | None) -> Chain:
    """Return transforms in a chain; those that mix samples (None) are built here, as they apply the ones before."""
    chained: list[Transform] = []
    for step, alone in steps:
        if alone is not None:
            chained.append(alone)
            continue
        others = NoSampleProvider() if dataset is None else DrawnOthers(dataset, Chain(tuple(chained)))
        chained.append(build_chosen(step, "preprocessing_step", MIXING_STEPS, others))
    return Chain(tuple(chained))


class _LabelLookup:
    """The mapping of class ids to labels."""

    def __init__(self, dataset: Dataset | None) -> None:
        self._known = None if dataset is None else {c.id: c.label for c in dataset.categories}

    def of(self, number: int) -> int:
        """Return the label of an id; -1, which no object has, for an unknown id."""
        return number - 1 if self._known is None else self._known.get(number, -1)


def _build_alone(step: m.PreprocessingStep, labels: _LabelLookup, dataset: Dataset | None) -> Transform | None:
    """Build a step that changes a sample by itself; None for one that mixes several."""
    refuse_unsupported(step, step.path_of(""))
    if step.drop_label_probabilistically is not None:
        config = step.drop_label_probabilistically
        return DropLabel(labels.of(config.label), config.drop_probability)
    if step.remap_labels is not None:
        return _remap(step.remap_labels, labels)
    if step.which("preprocessing_step") in MIXING_STEPS:
        return None
    if step.user_augmentation is not None:
        return build_user_augmentation(step.user_augmentation, call=dataset is not None)
    return build_chosen(step, "preprocessing_step", _STEPS)


def _remap(config: m.RemapLabels, labels: _LabelLookup) -> Transform:
    new = labels.of(config.new_label)
    if new < 0:
        raise config.refusal("new_label", f"no class has the id {config.new_label}")
    return RemapLabels(tuple(labels.of(number) for number in config.original_labels), new)


def _ratios(config: _PADS) -> tuple[tuple[float, float], tuple[float, float]]:
    """Return the smallest and the largest ratio of height and width."""
    (least_height, least_width) = config.min_padded_size_ratio or (1.0, 1.0)
    (most_height, most_width) = config.max_padded_size_ratio or (2.0, 2.0)
    return (least_height, least_width), (most_height, most_width)


def _crop(config: _CROPS) -> RandomCrop:
    return RandomCrop(
        min_object_covered=config.min_object_covered,
        aspect_ratios=(config.min_aspect_ratio, config.max_aspect_ratio),
        areas=(config.min_area, config.max_area),
        overlap_threshold=config.overlap_thresh,
        clip_boxes=config.clip_boxes,
        keep_probability=config.random_coef,
    )


def _crops(operations: Sequence[_CROPS]) -> Sequence[RandomCrop]:
    return [_crop(operation) for operation in operations] if operations else SSD_CROPS


def _ssd_crop(config: m.SSDRandomCrop) -> Transform:
    return OneOf(_crops(config.operations))


def _crop_pad(config: m.RandomCropPadImage) -> Transform:
    return RandomCropPad(_crop(config), *_ratios(config), tuple(config.pad_color) or None)


def _ssd_crop_pad(config: m.SSDRandomCropPad) -> Transform:
    if not config.operations:
        return OneOf(tuple(RandomCropPad(crop) for crop in SSD_CROPS[1:]))
    return OneOf(
        tuple(
            RandomCropPad(_crop(o), *_ratios(o), (o.pad_color_r, o.pad_color_g, o.pad_color_b))
            for o in config.operations
        )
    )


def _fixed_crop(config: m.SSDRandomCropFixedAspectRatio) -> Transform:
    if not config.operations:  # TF then keeps the ratio at 1, regardless of the field
        squares = [replace(crop, aspect_ratios=(1.0, 1.0)) for crop in SSD_CROPS]
        return Chain((OneOf(squares), RandomCropToAspectRatio()))
    ratio = config.aspect_ratio
    crops = [
        RandomCrop(
            min_object_covered=operation.min_object_covered,
            aspect_ratios=(ratio, ratio),
            areas=(operation.min_area, operation.max_area),
            overlap_threshold=operation.overlap_thresh,
            clip_boxes=operation.clip_boxes,
            keep_probability=operation.random_coef,
        )
        for operation in config.operations
    ]
    clip = all(operation.clip_boxes for operation in config.operations)
    return Chain((OneOf(crops), RandomCropToAspectRatio(ratio, clip_boxes=clip)))


def _fixed_pad(config: m.SSDRandomCropPadFixedAspectRatio) -> Transform:
    pad = RandomPadToAspectRatio(config.aspect_ratio, *_ratios(config))
    return Chain((OneOf(_crops(config.operations)), pad))


def _pad(config: m.RandomPadImage) -> Transform:
    least, most = (config.min_image_height, config.min_image_width), (config.max_image_height, config.max_image_width)
    return RandomPad(least if any(least) else None, most if any(most) else None, tuple(config.pad_color) or None)


def _absolute_pad(config: m.RandomAbsolutePadImage) -> Transform:
    padding = config.max_height_padding, config.max_width_padding
    return RandomAbsolutePad(padding, tuple(config.pad_color) or None)


def _subtract_mean(config: m.SubtractChannelMean) -> Transform:
    return SubtractChannelMean(tuple(config.means))


def _distort(config: m.RandomDistortColor) -> Transform:
    return DistortColor(config.color_ordering)


def _map_range(config: m.NormalizeImage) -> Transform:
    return MapRange((config.original_minval, config.original_maxval), (config.target_minval, config.target_maxval))


def _downscale(config: m.RandomDownscaleToTargetPixels) -> Transform:
    most = config.max_target_pixels if config.has("max_target_pixels") else _LARGEST_TARGET
    least = config.min_target_pixels
    return RandomDownscale((least, most), config.random_coef)


def _square_crop(config: m.RandomSquareCropByScale) -> Transform:
    scales = (config.scale_min, config.scale_max)
    return RandomSquareCrop(config.max_border, scales, config.num_scales)


def _scale_crop_pad(config: m.RandomScaleCropAndPadToSquare) -> Transform:
    scales = (config.scale_min, config.scale_max)
    return RandomScaleCropPad(config.output_size, scales)


def _patch_gaussian(config: m.RandomPatchGaussian) -> Transform:
    return RandomPatchGaussian(
        (config.min_patch_size, config.max_patch_size),
        (config.min_gaussian_stddev, config.max_gaussian_stddev),
        config.random_coef,
    )


def _jpeg(config: m.RandomJpegQuality) -> Transform:
    return RandomJpegQuality((config.min_jpeg_quality, config.max_jpeg_quality), config.random_coef)


def _softmax(config: m.ConvertClassLogitsToSoftmax) -> Transform:
    return ScoresFromLogits(config.temperature)


def _autoaugment(config: m.AutoAugmentImage) -> Transform:
    if config.sub_policy:
        return AutoAugment(tuple(tuple(_operation(o) for o in sub.operation) for sub in config.sub_policy))
    return AutoAugment(POLICIES[config.policy_name])


def _operation(config: m.AutoAugmentOperation) -> Operation:
    return Operation(config.name, config.probability, config.level)


def _black_patches(config: m.RandomBlackPatches) -> Transform:
    return RandomBlackPatches(config.max_black_patches, config.probability, config.size_to_image_ratio)


def _resize_image(config: m.ResizeImage) -> Transform:
    methods = {
        m.ResizeImageMethod.AREA: resize_area,
        m.ResizeImageMethod.BICUBIC: resize_bicubic,
        m.ResizeImageMethod.BILINEAR: resize_bilinear,
        m.ResizeImageMethod.NEAREST_NEIGHBOR: resize_nearest,
    }
    return ResizeTo((config.new_height, config.new_width), methods[config.method])


def _caffe_distort(config: m.CaffeDistort) -> Transform:
    return CaffeDistort(
        config.probability,
        config.brightness,
        (config.min_contrast, config.max_contrast),
        (config.min_saturation, config.max_saturation),
        config.hue,
    )


def _expand(config: m.RandomExpand) -> Transform:
    red, green, blue = config.color
    return RandomExpand(config.probability, config.max_ratio, (red, green, blue))


def _overlap_crop(config: m.OverlapCrop) -> Transform:
    scales, ratios = (config.min_scale, config.max_scale), (config.min_aspect_ratio, config.max_aspect_ratio)
    return OverlapCrop(tuple(config.min_overlap), scales, ratios)


def _resize(config: m.RandomInterpolationResize) -> Transform:
    return RandomInterpolationResize((config.height, config.width))


def _symmetry(config: m.RandomHorizontalFlip | m.RandomVerticalFlip) -> SurfaceSymmetry | None:
    return read_symmetry(as_here(config.dense_pose_symmetry)) if config.dense_pose_symmetry else None


_STEPS: dict[str, Callable[[Any], Transform]] = {
    "normalize_image": _map_range,
    "random_horizontal_flip": lambda c: RandomHorizontalFlip(
        c.probability, tuple(c.keypoint_flip_permutation), _symmetry(c)
    ),
    "random_vertical_flip": lambda c: RandomVerticalFlip(
        c.probability, tuple(c.keypoint_flip_permutation), _symmetry(c)
    ),
    "random_rotation90": lambda c: RandomRotation90(c.probability, tuple(c.keypoint_rot_permutation)),
    "random_pixel_value_scale": lambda c: RandomPixelScale(c.minval, c.maxval),
    "random_image_scale": lambda c: RandomScale((c.min_scale_ratio, c.max_scale_ratio)),
    "random_rgb_to_gray": lambda c: RandomGray(c.probability),
    "rgb_to_gray": lambda _: Gray(),
    "random_adjust_brightness": lambda c: RandomBrightness(c.max_delta),
    "random_adjust_contrast": lambda c: RandomContrast(c.min_delta, c.max_delta),
    "random_adjust_hue": lambda c: RandomHue(c.max_delta),
    "random_adjust_saturation": lambda c: RandomSaturation(c.min_delta, c.max_delta),
    "random_distort_color": _distort,
    "random_jitter_boxes": lambda c: JitterBoxes(JITTERS[c.jitter_mode.name], c.ratio),
    "random_crop_image": _crop,
    "random_pad_image": _pad,
    "random_absolute_pad_image": _absolute_pad,
    "random_crop_pad_image": _crop_pad,
    "random_crop_to_aspect_ratio": lambda c: RandomCropToAspectRatio(c.aspect_ratio, c.overlap_thresh, c.clip_boxes),
    "random_black_patches": _black_patches,
    "random_resize_method": lambda c: RandomResizeMethod((c.target_height, c.target_width)),
    "resize_image": _resize_image,
    "scale_boxes_to_pixel_coordinates": lambda _: as_it_is,
    "subtract_channel_mean": _subtract_mean,
    "ssd_random_crop": _ssd_crop,
    "ssd_random_crop_pad": _ssd_crop_pad,
    "ssd_random_crop_fixed_aspect_ratio": _fixed_crop,
    "ssd_random_crop_pad_fixed_aspect_ratio": _fixed_pad,
    "convert_class_logits_to_softmax": _softmax,
    "random_self_concat_image": lambda c: RandomSelfConcat(
        c.concat_vertical_probability, c.concat_horizontal_probability
    ),
    "autoaugment_image": _autoaugment,
    "random_jpeg_quality": _jpeg,
    "random_downscale_to_target_pixels": _downscale,
    "random_patch_gaussian": _patch_gaussian,
    "random_square_crop_by_scale": _square_crop,
    "random_scale_crop_and_pad_to_square": _scale_crop_pad,
    "adjust_gamma": lambda c: AdjustGamma(c.gamma, c.gain),
    "caffe_distort": _caffe_distort,
    "random_expand": _expand,
    "overlap_crop": _overlap_crop,
    "random_interpolation_resize": _resize,
    **SINGLE_STEPS,
}
