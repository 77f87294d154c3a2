"""`PreprocessingStep`: data augmentation, TensorFlow's, ours, and a transform that a user's function returns."""

from __future__ import annotations

import importlib
import json
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from boxwright.base.errors import ConfigError
from boxwright.base.files import as_here
from boxwright.config.build import build_chosen, require
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
from boxwright.data.augmentation.corruption import (
    RandomBlackPatches,
    RandomErasing,
    RandomJpegQuality,
    RandomPatchGaussian,
)
from boxwright.data.augmentation.crop import (
    SSD_CROPS,
    DataAnchorSampling,
    RandomCrop,
    RandomCropToAspectRatio,
    RandomSizeCrop,
    RandomSquareCrop,
    RandomSquarePatch,
    RandomTile,
)
from boxwright.data.augmentation.flip import (
    RandomHorizontalFlip,
    RandomRotation90,
    RandomSelfConcat,
    RandomVerticalFlip,
)
from boxwright.data.augmentation.labels import DropLabel, JitterBoxes, RemapLabels, ScoresFromLogits, as_it_is
from boxwright.data.augmentation.mosaic import AffineMosaic, CopyPaste, MixUp, Mosaic
from boxwright.data.augmentation.pad import (
    LargeScaleJitter,
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
from boxwright.data.augmentation.transform import (
    Chain,
    DrawnOthers,
    NoSampleProvider,
    OneOf,
    SampleProvider,
    Stages,
    Transform,
    UnlessMosaic,
)
from boxwright.data.augmentation.user_transforms import (
    OwnTransform,
    TorchvisionTransform,
    albumentations_transform,
    is_of_albumentations,
    is_of_torchvision,
)
from boxwright.data.dataset import Dataset
from boxwright.data.dense_pose import SurfaceSymmetry, read_symmetry
from boxwright.nn.ops.resize import resize_area, resize_bicubic, resize_bilinear, resize_nearest
from boxwright.pipeline import messages as m
from boxwright.types import Sample

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
        others = NoSampleProvider() if dataset is None else DrawnOthers(dataset, Chain(tuple(chained)))
        transform = alone or build_chosen(step, "preprocessing_step", _MIXING_STEPS, others)
        chained.append(UnlessMosaic(transform) if step.skip_mosaics else transform)
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
    refuse_unsupported(step, step.field_path(""))
    if step.drop_label_probabilistically is not None:
        config = step.drop_label_probabilistically
        return DropLabel(labels.of(config.label), config.drop_probability)
    if step.remap_labels is not None:
        return _remap(step.remap_labels, labels)
    if step.which("preprocessing_step") in _MIXING_STEPS:
        return None
    if step.user_augmentation is not None:
        return build_user_augmentation(step.user_augmentation, call=dataset is not None)
    return build_chosen(step, "preprocessing_step", _STEPS)


def _remap(config: m.RemapLabels, labels: _LabelLookup) -> Transform:
    new = labels.of(config.new_label)
    if new < 0:
        raise config.refusal("new_label", f"no class has the id {config.new_label}")
    return RemapLabels(tuple(labels.of(number) for number in config.original_labels), new)


def _color(config: m.RandomMosaic | m.RandomAffineMosaic | m.LargeScaleJitter) -> tuple[float, ...]:
    return tuple(map(float, config.color))


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


def _pad(config: m.RandomPadImage) -> Transform:
    least, most = (config.min_image_height, config.min_image_width), (config.max_image_height, config.max_image_width)
    return RandomPad(least if any(least) else None, most if any(most) else None, tuple(config.pad_color) or None)


def _autoaugment(config: m.AutoAugmentImage) -> Transform:
    if config.sub_policy:
        return AutoAugment(
            tuple(tuple(Operation(o.name, o.probability, o.level) for o in sub.operation) for sub in config.sub_policy)
        )
    return AutoAugment(POLICIES[config.policy_name])


def _resize_image(config: m.ResizeImage) -> Transform:
    methods = {
        m.ResizeImageMethod.AREA: resize_area,
        m.ResizeImageMethod.BICUBIC: resize_bicubic,
        m.ResizeImageMethod.BILINEAR: resize_bilinear,
        m.ResizeImageMethod.NEAREST_NEIGHBOR: resize_nearest,
    }
    return ResizeTo((config.new_height, config.new_width), methods[config.method])


def _symmetry(config: m.RandomHorizontalFlip | m.RandomVerticalFlip) -> SurfaceSymmetry | None:
    return read_symmetry(as_here(config.dense_pose_symmetry)) if config.dense_pose_symmetry else None


_STEPS: dict[str, Callable[[Any], Transform]] = {
    "normalize_image": lambda c: MapRange((c.original_minval, c.original_maxval), (c.target_minval, c.target_maxval)),
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
    "random_distort_color": lambda c: DistortColor(c.color_ordering),
    "random_jitter_boxes": lambda c: JitterBoxes(c.jitter_mode.name, c.ratio),
    "random_crop_image": _crop,
    "random_pad_image": _pad,
    "random_absolute_pad_image": lambda c: RandomAbsolutePad(
        (c.max_height_padding, c.max_width_padding), tuple(c.pad_color) or None
    ),
    "random_crop_pad_image": lambda c: RandomCropPad(_crop(c), *_ratios(c), tuple(c.pad_color) or None),
    "random_crop_to_aspect_ratio": lambda c: RandomCropToAspectRatio(c.aspect_ratio, c.overlap_thresh, c.clip_boxes),
    "random_black_patches": lambda c: RandomBlackPatches(c.max_black_patches, c.probability, c.size_to_image_ratio),
    "random_resize_method": lambda c: RandomResizeMethod((c.target_height, c.target_width)),
    "resize_image": _resize_image,
    "scale_boxes_to_pixel_coordinates": lambda _: as_it_is,
    "subtract_channel_mean": lambda c: SubtractChannelMean(tuple(c.means)),
    "ssd_random_crop": lambda c: OneOf(_crops(c.operations)),
    "ssd_random_crop_pad": _ssd_crop_pad,
    "ssd_random_crop_fixed_aspect_ratio": _fixed_crop,
    "ssd_random_crop_pad_fixed_aspect_ratio": lambda c: Chain(
        (OneOf(_crops(c.operations)), RandomPadToAspectRatio(c.aspect_ratio, *_ratios(c)))
    ),
    "convert_class_logits_to_softmax": lambda c: ScoresFromLogits(c.temperature),
    "random_self_concat_image": lambda c: RandomSelfConcat(
        c.concat_vertical_probability, c.concat_horizontal_probability
    ),
    "autoaugment_image": _autoaugment,
    "random_jpeg_quality": lambda c: RandomJpegQuality((c.min_jpeg_quality, c.max_jpeg_quality), c.random_coef),
    "random_downscale_to_target_pixels": lambda c: RandomDownscale(
        (c.min_target_pixels, c.max_target_pixels if c.has("max_target_pixels") else _LARGEST_TARGET), c.random_coef
    ),
    "random_patch_gaussian": lambda c: RandomPatchGaussian(
        (c.min_patch_size, c.max_patch_size), (c.min_gaussian_stddev, c.max_gaussian_stddev), c.random_coef
    ),
    "random_square_crop_by_scale": lambda c: RandomSquareCrop(c.max_border, (c.scale_min, c.scale_max), c.num_scales),
    "random_scale_crop_and_pad_to_square": lambda c: RandomScaleCropPad(c.output_size, (c.scale_min, c.scale_max)),
    "adjust_gamma": lambda c: AdjustGamma(c.gamma, c.gain),
    "caffe_distort": lambda c: CaffeDistort(
        c.probability, c.brightness, (c.min_contrast, c.max_contrast), (c.min_saturation, c.max_saturation), c.hue
    ),
    "random_expand": lambda c: RandomExpand(c.probability, c.max_ratio, tuple(c.color)),
    "overlap_crop": lambda c: OverlapCrop(
        tuple(c.min_overlap), (c.min_scale, c.max_scale), (c.min_aspect_ratio, c.max_aspect_ratio)
    ),
    "random_interpolation_resize": lambda c: RandomInterpolationResize((c.height, c.width)),
    "large_scale_jitter": lambda c: LargeScaleJitter(
        (c.height, c.width), (c.scale_min, c.scale_max), c.min_visible, _color(c)
    ),
    "random_erasing": lambda c: RandomErasing(c.probability, (c.min_area, c.max_area), c.min_aspect_ratio),
    "random_tile": lambda c: RandomTile((c.height, c.width), c.object_probability, c.min_visible),
    "data_anchor_sampling": lambda c: DataAnchorSampling(c.size, tuple(map(float, c.scales))),
    "random_size_crop": lambda c: RandomSizeCrop(c.probability, tuple(c.shorter_sides), (c.min_side, c.max_side)),
    "random_square_patch": lambda c: RandomSquarePatch(c.size, (c.min_side, c.max_side)),
}


def build_user_augmentation(config: m.UserAugmentation, *, call: bool) -> Transform:
    """Build the transform returned by a user's function.

    It runs with the rights of the training process, and only in training: never when a configuration is checked or
    checkpoints are read.

    Args:
        call: Whether to import and call the function; otherwise only the message is checked.

    Returns:
        The transform: torchvision's and Albumentations' wrapped, any other as it is.
    """
    arguments = {argument.key: json.loads(argument.value) for argument in config.arguments}
    if not call:
        return _not_called
    transform = _call(config, arguments)
    if is_of_torchvision(transform):
        return TorchvisionTransform(transform)
    if is_of_albumentations(transform):
        return albumentations_transform(transform)
    if not callable(transform):
        raise config.refusal(
            "callable",
            f"{config.callable} returned {type(transform).__name__}; expected a transform of "
            "torchvision (v2) or Albumentations, or a function of (sample, rng) that returns a sample",
        )
    return OwnTransform(transform)


def _not_called(sample: Sample, rng: np.random.Generator) -> Sample:
    del sample, rng
    raise ConfigError("user_augmentation: this chain was built without the data, to be checked only")


def _call(config: m.UserAugmentation, arguments: dict[str, Any]) -> Any:
    name = config.callable
    module, _, path = name.partition(":")
    try:
        target: Any = importlib.import_module(module)
        for part in path.split("."):
            target = getattr(target, part)
    except (ImportError, AttributeError) as error:
        raise config.refusal(
            "callable",
            f"{name}: {error}; modules are imported as in Python: install its package, or add its folder to PYTHONPATH",
        ) from error
    except Exception as error:  # user code may raise anything
        raise config.refusal("callable", f"importing {module} raised {type(error).__name__}: {error}") from error
    try:
        return target(**arguments)
    except Exception as error:  # user code may raise anything
        raise config.refusal("callable", f"{name} raised {type(error).__name__}: {error}") from error


# The builders of these also take the other samples.
_MIXING_STEPS: dict[str, Callable[[Any, SampleProvider], Transform]] = {
    "random_mosaic": lambda c, others: Mosaic(
        others,
        c.probability,
        (c.height, c.width) if c.height else None,
        (c.min_center, c.max_center),
        (c.scale_min, c.scale_max),
        c.min_visible,
        _color(c),
    ),
    "random_affine_mosaic": lambda c, others: AffineMosaic(
        others, c.probability, c.shorter_side, c.degrees, c.shift, (c.scale_min, c.scale_max), _color(c)
    ),
    "random_mixup": lambda c, others: MixUp(others, c.probability, c.alpha, c.min_weight),
    "random_copy_paste": lambda c, others: CopyPaste(others, c.probability, c.max_objects, c.min_visible),
}
