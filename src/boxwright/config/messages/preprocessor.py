"""Data augmentation.

Names, types, defaults and oneofs are those of the TensorFlow Object Detection API.
"""

from typing import ClassVar

from boxwright.config.field import Field
from boxwright.config.message import Bool, Enum, Float, Int32, Message, String
from boxwright.config.messages.augmentation_beyond_tf import (
    DataAnchorSampling,
    LargeScaleJitter,
    RandomCopyPaste,
    RandomErasing,
    RandomMixup,
    RandomMosaic,
    RandomSquarePatch,
    RandomTile,
    UserAugmentation,
)
from boxwright.config.messages.caffe_augmentation import (
    CaffeDistort,
    OverlapCrop,
    RandomExpand,
    RandomInterpolationResize,
)
from boxwright.config.messages.center_net import RandomJitterBoxesJitterMode


class ResizeImageMethod(Enum):
    """Values of `ResizeImage.Method`."""

    AREA = 1
    BICUBIC = 2
    BILINEAR = 3
    NEAREST_NEIGHBOR = 4


class NormalizeImage(Message):
    """Maps pixel values linearly from one value range to another."""

    proto_name: ClassVar[str] = "NormalizeImage"

    original_minval: Float = Field(
        0.0, allow_inf_nan=False, description="Input pixel value that is mapped to target_minval."
    )
    original_maxval: Float = Field(
        0.0,
        allow_inf_nan=False,
        description="Input pixel value that is mapped to target_maxval; must differ from original_minval.",
    )
    target_minval: Float = Field(0.0, allow_inf_nan=False, description="Output value for original_minval.")
    target_maxval: Float = Field(1.0, allow_inf_nan=False, description="Output value for original_maxval.")


class RandomHorizontalFlip(Message):
    """Randomly mirrors image, boxes, masks and keypoints left to right."""

    proto_name: ClassVar[str] = "RandomHorizontalFlip"

    keypoint_flip_permutation: list[Int32] = Field(
        default_factory=list,
        description="Keypoint order to apply after the flip (index of the mirrored keypoint, one entry per keypoint).",
    )
    probability: Float = Field(0.5, ge=0, le=1, description="Chance of flipping an image; 0..1.")


class RandomPixelValueScale(Message):
    """Multiplies every pixel value by its own random factor and clips the result to the pixel range."""

    proto_name: ClassVar[str] = "RandomPixelValueScale"

    minval: Float = Field(0.9, allow_inf_nan=False, description="Smallest random factor.")
    maxval: Float = Field(1.1, allow_inf_nan=False, description="Largest random factor.")


class RandomImageScale(Message):
    """Resizes the whole image by a random factor, keeping its aspect ratio."""

    proto_name: ClassVar[str] = "RandomImageScale"

    min_scale_ratio: Float = Field(0.5, allow_inf_nan=False, description="Smallest resize factor (1 = original size).")
    max_scale_ratio: Float = Field(2.0, allow_inf_nan=False, description="Largest resize factor (1 = original size).")


class RandomRGBtoGray(Message):
    """Randomly turns the image gray while keeping three channels."""

    proto_name: ClassVar[str] = "RandomRGBtoGray"

    probability: Float = Field(0.1, ge=0, le=1, description="Chance of converting an image to gray; 0..1.")


class RandomAdjustBrightness(Message):
    """Adds a random brightness offset to the image."""

    proto_name: ClassVar[str] = "RandomAdjustBrightness"

    max_delta: Float = Field(
        0.2,
        ge=0,
        allow_inf_nan=False,
        description="Offset is drawn from -max_delta..max_delta, as a fraction of the full pixel range (1 = 255).",
    )


class RandomAdjustContrast(Message):
    """Scales the image contrast by a random factor."""

    proto_name: ClassVar[str] = "RandomAdjustContrast"

    min_delta: Float = Field(0.8, ge=0, allow_inf_nan=False, description="Smallest contrast factor (1 = no change).")
    max_delta: Float = Field(1.25, ge=0, allow_inf_nan=False, description="Largest contrast factor (1 = no change).")


class RandomAdjustHue(Message):
    """Shifts the image hue by a random amount."""

    proto_name: ClassVar[str] = "RandomAdjustHue"

    max_delta: Float = Field(
        0.02,
        ge=0,
        allow_inf_nan=False,
        description="Hue shift is drawn from -max_delta..max_delta, as a fraction of the full hue circle.",
    )


class RandomAdjustSaturation(Message):
    """Scales the color saturation by a random factor."""

    proto_name: ClassVar[str] = "RandomAdjustSaturation"

    min_delta: Float = Field(
        0.8, ge=0, allow_inf_nan=False, description="Smallest saturation factor (1 = no change, 0 = gray)."
    )
    max_delta: Float = Field(1.25, ge=0, allow_inf_nan=False, description="Largest saturation factor (1 = no change).")


class RandomDistortColor(Message):
    """Applies random brightness, saturation, hue and contrast changes of fixed strength."""

    proto_name: ClassVar[str] = "RandomDistortColor"

    color_ordering: Int32 = Field(
        0,
        description="Order of the color changes: 0 = bright., satur., hue, contrast; 1 = bright., contrast, satur., hue.",
    )


class RandomJitterBoxes(Message):
    """Randomly moves the corners of each ground-truth box."""

    proto_name: ClassVar[str] = "RandomJitterBoxes"

    ratio: Float = Field(
        0.05, ge=0, allow_inf_nan=False, description="Largest corner shift as a fraction of the box width or height."
    )
    jitter_mode: RandomJitterBoxesJitterMode = Field(
        RandomJitterBoxesJitterMode.DEFAULT,
        description="How corners move: DEFAULT = freely, EXPAND* = boxes only grow, SHRINK* = boxes only shrink.",
    )


class RandomCropImage(Message):
    """Randomly crops the image and keeps the boxes that remain sufficiently inside."""

    proto_name: ClassVar[str] = "RandomCropImage"

    min_object_covered: Float = Field(
        1.0, ge=0, le=1, description="Crop must contain at least this fraction of some box's area; 0..1."
    )
    min_aspect_ratio: Float = Field(
        0.75, allow_inf_nan=False, gt=0, description="Smallest width/height ratio the crop may have."
    )
    max_aspect_ratio: Float = Field(
        1.33, allow_inf_nan=False, gt=0, description="Largest width/height ratio the crop may have."
    )
    min_area: Float = Field(0.1, gt=0, le=1, description="Smallest crop area as a fraction of the image area.")
    max_area: Float = Field(1.0, gt=0, le=1, description="Largest crop area as a fraction of the image area.")
    overlap_thresh: Float = Field(
        0.3,
        ge=0,
        allow_inf_nan=False,
        description="Boxes with less than this fraction of their area inside the crop are dropped; 0..1.",
    )
    clip_boxes: Bool = Field(
        True, description="Cut boxes at the crop border; false keeps their full extent, beyond the crop."
    )
    random_coef: Float = Field(
        0.0,
        ge=0,
        allow_inf_nan=False,
        description="Probability of leaving the image unchanged; 0 = always apply, 1 = never.",
    )


class RandomPadImage(Message):
    """Pads the image to a random larger size, with the image at a random position."""

    proto_name: ClassVar[str] = "RandomPadImage"

    min_image_height: Int32 = Field(
        0,
        ge=0,
        description="Smallest padded height in pixels; unset = image height; set together with min_image_width.",
    )
    min_image_width: Int32 = Field(
        0, ge=0, description="Smallest padded width in pixels; unset = image width; set together with min_image_height."
    )
    max_image_height: Int32 = Field(
        0,
        ge=0,
        description="Largest padded height in pixels; unset = twice the image height; set with max_image_width.",
    )
    max_image_width: Int32 = Field(
        0, ge=0, description="Largest padded width in pixels; unset = twice the image width; set with max_image_height."
    )
    pad_color: list[Float] = Field(
        default_factory=list,
        description="RGB fill value of the padding, three numbers in image pixel units; unset = mean image color.",
    )


class RandomCropPadImage(Message):
    """Randomly crops the image, then pads the crop to a random larger size."""

    proto_name: ClassVar[str] = "RandomCropPadImage"

    min_object_covered: Float = Field(
        1.0, ge=0, le=1, description="Crop must contain at least this fraction of some box's area; 0..1."
    )
    min_aspect_ratio: Float = Field(
        0.75, allow_inf_nan=False, gt=0, description="Smallest width/height ratio the crop may have."
    )
    max_aspect_ratio: Float = Field(
        1.33, allow_inf_nan=False, gt=0, description="Largest width/height ratio the crop may have."
    )
    min_area: Float = Field(0.1, gt=0, le=1, description="Smallest crop area as a fraction of the image area.")
    max_area: Float = Field(1.0, gt=0, le=1, description="Largest crop area as a fraction of the image area.")
    overlap_thresh: Float = Field(
        0.3,
        ge=0,
        allow_inf_nan=False,
        description="Boxes with less than this fraction of their area inside the crop are dropped; 0..1.",
    )
    clip_boxes: Bool = Field(
        True, description="Cut boxes at the crop border; false keeps their full extent, beyond the crop."
    )
    random_coef: Float = Field(
        0.0, ge=0, le=1, description="Probability of leaving the image unchanged; 0 = always apply, 1 = never."
    )
    min_padded_size_ratio: list[Float] = Field(
        default_factory=list,
        description="Smallest padded size relative to the input image, two numbers: height, width.",
    )
    max_padded_size_ratio: list[Float] = Field(
        default_factory=list, description="Largest padded size relative to the input image, two numbers: height, width."
    )
    pad_color: list[Float] = Field(
        default_factory=list,
        description="RGB fill value of the padding, three numbers in image pixel units; unset = mean image color.",
    )


class RandomCropToAspectRatio(Message):
    """Crops the largest window of a given aspect ratio at a random position."""

    proto_name: ClassVar[str] = "RandomCropToAspectRatio"

    aspect_ratio: Float = Field(
        1.0, allow_inf_nan=False, description="Width/height ratio of the crop; must be positive."
    )
    overlap_thresh: Float = Field(
        0.3,
        ge=0,
        allow_inf_nan=False,
        description="Boxes with less than this fraction of their area inside the crop are dropped; 0..1.",
    )
    clip_boxes: Bool = Field(
        True, description="Cut boxes at the crop border; false keeps their full extent, beyond the crop."
    )


class RandomBlackPatches(Message):
    """Paints black square patches at random places in the image."""

    proto_name: ClassVar[str] = "RandomBlackPatches"

    max_black_patches: Int32 = Field(
        10, ge=0, description="Number of times a patch is tried, so the most patches per image."
    )
    probability: Float = Field(0.5, ge=0, le=1, description="Chance that each tried patch is painted; 0..1.")
    size_to_image_ratio: Float = Field(
        0.1, ge=0, le=1, description="Patch side length as a fraction of the shorter image side."
    )


class RandomResizeMethod(Message):
    """Resizes the image to a fixed size with a randomly chosen interpolation method."""

    proto_name: ClassVar[str] = "RandomResizeMethod"

    target_height: Int32 = Field(0, ge=0, description="Output height in pixels.")
    target_width: Int32 = Field(0, ge=0, description="Output width in pixels.")


class ScaleBoxesToPixelCoordinates(Message):
    """Converts boxes and keypoints from 0..1 coordinates to pixels; takes no settings."""

    proto_name: ClassVar[str] = "ScaleBoxesToPixelCoordinates"


class ResizeImage(Message):
    """Resizes every image to a fixed size, ignoring its aspect ratio."""

    proto_name: ClassVar[str] = "ResizeImage"

    new_height: Int32 = Field(0, ge=0, description="Output height in pixels.")
    new_width: Int32 = Field(0, ge=0, description="Output width in pixels.")
    method: ResizeImageMethod = Field(
        ResizeImageMethod.BILINEAR,
        description="Interpolation used for resizing: AREA, BICUBIC, BILINEAR or NEAREST_NEIGHBOR.",
    )


class SubtractChannelMean(Message):
    """Subtracts a constant from each image channel."""

    proto_name: ClassVar[str] = "SubtractChannelMean"

    means: list[Float] = Field(
        default_factory=list, description="Value to subtract, one per channel, in pixel units (3 numbers for RGB)."
    )


class SSDRandomCropOperation(Message):
    """One crop setting of ssd_random_crop."""

    proto_name: ClassVar[str] = "SSDRandomCropOperation"

    min_object_covered: Float = Field(
        0.0, ge=0, le=1, description="Crop must contain at least this fraction of some box's area; 0..1."
    )
    min_aspect_ratio: Float = Field(
        0.0,
        allow_inf_nan=False,
        gt=0,
        description="Smallest width/height ratio the crop may have; the default 0 is invalid, so set it.",
    )
    max_aspect_ratio: Float = Field(
        0.0,
        allow_inf_nan=False,
        gt=0,
        description="Largest width/height ratio the crop may have; the default 0 is invalid, so set it.",
    )
    min_area: Float = Field(
        0.0,
        gt=0,
        le=1,
        description="Smallest crop area as a fraction of the image area; the default 0 is invalid, so set it.",
    )
    max_area: Float = Field(
        0.0,
        gt=0,
        le=1,
        description="Largest crop area as a fraction of the image area; the default 0 is invalid, so set it.",
    )
    overlap_thresh: Float = Field(
        0.0,
        ge=0,
        allow_inf_nan=False,
        description="Boxes with less than this fraction of their area inside the crop are dropped; 0..1.",
    )
    clip_boxes: Bool = Field(
        True, description="Cut boxes at the crop border; false keeps their full extent, beyond the crop."
    )
    random_coef: Float = Field(
        0.0,
        ge=0,
        allow_inf_nan=False,
        description="Probability of leaving the image unchanged; 0 = always apply, 1 = never.",
    )


class SSDRandomCrop(Message):
    """SSD-style crop: picks one of several crop settings at random for each image."""

    proto_name: ClassVar[str] = "SSDRandomCrop"

    operations: list[SSDRandomCropOperation] = Field(
        default_factory=list, description="Crop settings to choose from with equal chance; empty = built-in SSD set."
    )


class SSDRandomCropPadOperation(Message):
    """One crop-and-pad setting of ssd_random_crop_pad."""

    proto_name: ClassVar[str] = "SSDRandomCropPadOperation"

    min_object_covered: Float = Field(
        0.0, ge=0, le=1, description="Crop must contain at least this fraction of some box's area; 0..1."
    )
    min_aspect_ratio: Float = Field(
        0.0,
        allow_inf_nan=False,
        gt=0,
        description="Smallest width/height ratio the crop may have; the default 0 is invalid, so set it.",
    )
    max_aspect_ratio: Float = Field(
        0.0,
        allow_inf_nan=False,
        gt=0,
        description="Largest width/height ratio the crop may have; the default 0 is invalid, so set it.",
    )
    min_area: Float = Field(
        0.0,
        gt=0,
        le=1,
        description="Smallest crop area as a fraction of the image area; the default 0 is invalid, so set it.",
    )
    max_area: Float = Field(
        0.0,
        gt=0,
        le=1,
        description="Largest crop area as a fraction of the image area; the default 0 is invalid, so set it.",
    )
    overlap_thresh: Float = Field(
        0.0,
        ge=0,
        allow_inf_nan=False,
        description="Boxes with less than this fraction of their area inside the crop are dropped; 0..1.",
    )
    clip_boxes: Bool = Field(
        True, description="Cut boxes at the crop border; false keeps their full extent, beyond the crop."
    )
    random_coef: Float = Field(
        0.0, ge=0, le=1, description="Probability of leaving the image unchanged; 0 = always apply, 1 = never."
    )
    min_padded_size_ratio: list[Float] = Field(
        default_factory=list,
        description="Smallest padded size relative to the input image, two numbers: height, width.",
    )
    max_padded_size_ratio: list[Float] = Field(
        default_factory=list, description="Largest padded size relative to the input image, two numbers: height, width."
    )
    pad_color_r: Float = Field(0.0, allow_inf_nan=False, description="Red value of the padding, in pixel units.")
    pad_color_g: Float = Field(0.0, allow_inf_nan=False, description="Green value of the padding, in pixel units.")
    pad_color_b: Float = Field(0.0, allow_inf_nan=False, description="Blue value of the padding, in pixel units.")


class SSDRandomCropPad(Message):
    """SSD-style crop and pad: picks one of several settings at random for each image."""

    proto_name: ClassVar[str] = "SSDRandomCropPad"

    operations: list[SSDRandomCropPadOperation] = Field(
        default_factory=list,
        description="Crop-and-pad settings to choose from with equal chance; empty = built-in set.",
    )


class SSDRandomCropFixedAspectRatioOperation(Message):
    """One crop setting of ssd_random_crop_fixed_aspect_ratio."""

    proto_name: ClassVar[str] = "SSDRandomCropFixedAspectRatioOperation"

    min_object_covered: Float = Field(
        0.0, ge=0, le=1, description="Crop must contain at least this fraction of some box's area; 0..1."
    )
    min_area: Float = Field(
        0.0,
        gt=0,
        le=1,
        description="Smallest crop area as a fraction of the image area; the default 0 is invalid, so set it.",
    )
    max_area: Float = Field(
        0.0,
        gt=0,
        le=1,
        description="Largest crop area as a fraction of the image area; the default 0 is invalid, so set it.",
    )
    overlap_thresh: Float = Field(
        0.0,
        ge=0,
        allow_inf_nan=False,
        description="Boxes with less than this fraction of their area inside the crop are dropped; 0..1.",
    )
    clip_boxes: Bool = Field(
        True, description="Cut boxes at the crop border; false keeps their full extent, beyond the crop."
    )
    random_coef: Float = Field(
        0.0, ge=0, le=1, description="Probability of leaving the image unchanged; 0 = always apply, 1 = never."
    )


class SSDRandomCropFixedAspectRatio(Message):
    """SSD-style random crop where every crop has the same aspect ratio."""

    proto_name: ClassVar[str] = "SSDRandomCropFixedAspectRatio"

    operations: list[SSDRandomCropFixedAspectRatioOperation] = Field(
        default_factory=list, description="Crop settings to choose from with equal chance; empty = built-in set."
    )
    aspect_ratio: Float = Field(
        1.0, allow_inf_nan=False, description="Width/height ratio of every crop; must be positive."
    )


class SSDRandomCropPadFixedAspectRatioOperation(Message):
    """One crop setting of ssd_random_crop_pad_fixed_aspect_ratio."""

    proto_name: ClassVar[str] = "SSDRandomCropPadFixedAspectRatioOperation"

    min_object_covered: Float = Field(
        0.0, ge=0, le=1, description="Crop must contain at least this fraction of some box's area; 0..1."
    )
    min_aspect_ratio: Float = Field(
        0.0,
        allow_inf_nan=False,
        gt=0,
        description="Smallest width/height ratio the crop may have; the default 0 is invalid, so set it.",
    )
    max_aspect_ratio: Float = Field(
        0.0,
        allow_inf_nan=False,
        gt=0,
        description="Largest width/height ratio the crop may have; the default 0 is invalid, so set it.",
    )
    min_area: Float = Field(
        0.0,
        gt=0,
        le=1,
        description="Smallest crop area as a fraction of the image area; the default 0 is invalid, so set it.",
    )
    max_area: Float = Field(
        0.0,
        gt=0,
        le=1,
        description="Largest crop area as a fraction of the image area; the default 0 is invalid, so set it.",
    )
    overlap_thresh: Float = Field(
        0.0,
        ge=0,
        allow_inf_nan=False,
        description="Boxes with less than this fraction of their area inside the crop are dropped; 0..1.",
    )
    clip_boxes: Bool = Field(
        True, description="Cut boxes at the crop border; false keeps their full extent, beyond the crop."
    )
    random_coef: Float = Field(
        0.0, ge=0, le=1, description="Probability of leaving the image unchanged; 0 = always apply, 1 = never."
    )


class SSDRandomCropPadFixedAspectRatio(Message):
    """SSD-style random crop, then padding to a fixed aspect ratio."""

    proto_name: ClassVar[str] = "SSDRandomCropPadFixedAspectRatio"

    operations: list[SSDRandomCropPadFixedAspectRatioOperation] = Field(
        default_factory=list, description="Crop settings to choose from with equal chance; empty = built-in set."
    )
    aspect_ratio: Float = Field(
        1.0, allow_inf_nan=False, description="Width/height ratio of the padded image; must be positive."
    )
    min_padded_size_ratio: list[Float] = Field(
        default_factory=list, description="Smallest padded size relative to the image, two numbers: height, width."
    )
    max_padded_size_ratio: list[Float] = Field(
        default_factory=list, description="Largest padded size relative to the image, two numbers: height, width."
    )


class RandomVerticalFlip(Message):
    """Randomly mirrors image, boxes, masks and keypoints top to bottom."""

    proto_name: ClassVar[str] = "RandomVerticalFlip"

    keypoint_flip_permutation: list[Int32] = Field(
        default_factory=list,
        description="Keypoint order to apply after the flip (index of the mirrored keypoint, one entry per keypoint).",
    )
    probability: Float = Field(0.5, ge=0, le=1, description="Chance of flipping an image; 0..1.")


class RandomRotation90(Message):
    """Randomly rotates image and annotations by 90 degrees counter-clockwise."""

    proto_name: ClassVar[str] = "RandomRotation90"

    keypoint_rot_permutation: list[Int32] = Field(
        default_factory=list, description="Keypoint order to apply after the rotation (one index per keypoint)."
    )
    probability: Float = Field(0.5, ge=0, le=1, description="Chance of rotating an image; 0..1.")


class RGBtoGray(Message):
    """Turns every image gray; takes no settings."""

    proto_name: ClassVar[str] = "RGBtoGray"


class ConvertClassLogitsToSoftmax(Message):
    """Turns stored multiclass logits of each box into probabilities by softmax."""

    proto_name: ClassVar[str] = "ConvertClassLogitsToSoftmax"

    temperature: Float = Field(
        1.0,
        allow_inf_nan=False,
        description="Logits are divided by this first; above 1 gives flatter probabilities; must not be 0.",
    )


class RandomAbsolutePadImage(Message):
    """Pads the image by a random number of pixels, with the image at a random position."""

    proto_name: ClassVar[str] = "RandomAbsolutePadImage"

    max_height_padding: Int32 = Field(0, ge=0, description="Upper limit of the added height in pixels.")
    max_width_padding: Int32 = Field(0, ge=0, description="Upper limit of the added width in pixels.")
    pad_color: list[Float] = Field(
        default_factory=list,
        description="RGB fill value of the padding, three numbers in image pixel units; unset = mean image color.",
    )


class RandomSelfConcatImage(Message):
    """Randomly places a second copy of the image below or beside itself, boxes included."""

    proto_name: ClassVar[str] = "RandomSelfConcatImage"

    concat_vertical_probability: Float = Field(
        0.1, ge=0, le=1, description="Chance of stacking a copy vertically; 0..1."
    )
    concat_horizontal_probability: Float = Field(
        0.1, ge=0, le=1, description="Chance of placing a copy side by side; 0..1."
    )


class AutoAugmentOperation(Message):
    """One operation of a sub-policy of autoaugment_image (an extension of Boxwright)."""

    proto_name: ClassVar[str] = "AutoAugmentOperation"

    name: String = Field("", description="What is done, as Rotate_BBox, Color or Cutout_Only_BBoxes.")
    probability: Float = Field(1.0, ge=0, le=1, description="Chance of doing it; 0..1.")
    level: Float = Field(5.0, ge=0, le=10, description="How strongly; 0..10.")


class AutoAugmentSubPolicy(Message):
    """One sub-policy of autoaugment_image; each image gets one, chosen at random (an extension of Boxwright)."""

    proto_name: ClassVar[str] = "AutoAugmentSubPolicy"

    operation: list[AutoAugmentOperation] = Field(default_factory=list, description="What is done, in order.")


class AutoAugmentImage(Message):
    """Applies a learned AutoAugment policy for detection to image and boxes."""

    proto_name: ClassVar[str] = "AutoAugmentImage"

    policy_name: String = Field("v0", description="Name of the policy: v0, v1, v2, v3 or test.")
    sub_policy: list[AutoAugmentSubPolicy] = Field(
        default_factory=list, description="A policy of your own instead of policy_name (an extension of Boxwright)."
    )


class DropLabelProbabilistically(Message):
    """Randomly removes ground-truth boxes of one class."""

    proto_name: ClassVar[str] = "DropLabelProbabilistically"

    label: Int32 = Field(0, ge=0, description="Class id (as in the label map) whose boxes may be removed.")
    drop_probability: Float = Field(1.0, ge=0, le=1, description="Chance of removing each such box; 0..1.")


class RemapLabels(Message):
    """Replaces several class ids by one class id in the ground truth."""

    proto_name: ClassVar[str] = "RemapLabels"

    original_labels: list[Int32] = Field(default_factory=list, description="Class ids to replace.")
    new_label: Int32 = Field(0, ge=0, description="Class id they are replaced by.")


class RandomJpegQuality(Message):
    """Adds JPEG compression artifacts of random strength."""

    proto_name: ClassVar[str] = "RandomJpegQuality"

    random_coef: Float = Field(
        0.0, ge=0, le=1, description="Probability of leaving the image unchanged; 0 = always apply, 1 = never."
    )
    min_jpeg_quality: Int32 = Field(
        0, ge=0, le=100, description="Lower bound of the random JPEG quality; 0..100, lower is worse."
    )
    max_jpeg_quality: Int32 = Field(100, ge=0, le=100, description="Upper bound of the random JPEG quality; 0..100.")


class RandomDownscaleToTargetPixels(Message):
    """Shrinks large images to a random pixel count, keeping the aspect ratio."""

    proto_name: ClassVar[str] = "RandomDownscaleToTargetPixels"

    random_coef: Float = Field(
        0.0, ge=0, le=1, description="Probability of leaving the image unchanged; 0 = always apply, 1 = never."
    )
    min_target_pixels: Int32 = Field(
        300000, ge=0, description="Smallest target size, in total pixels (height times width)."
    )
    max_target_pixels: Int32 = Field(
        500000, ge=0, description="Largest target size, in total pixels (height times width)."
    )


class RandomPatchGaussian(Message):
    """Adds Gaussian noise inside one random square patch of the image."""

    proto_name: ClassVar[str] = "RandomPatchGaussian"

    random_coef: Float = Field(
        0.0, ge=0, le=1, description="Probability of leaving the image unchanged; 0 = always apply, 1 = never."
    )
    min_patch_size: Int32 = Field(1, ge=0, description="Smallest side length of the patch in pixels.")
    max_patch_size: Int32 = Field(250, ge=0, description="Largest side length of the patch in pixels.")
    min_gaussian_stddev: Float = Field(
        0.0, ge=0, allow_inf_nan=False, description="Smallest noise standard deviation, for pixels scaled to 0..1."
    )
    max_gaussian_stddev: Float = Field(
        1.0, ge=0, allow_inf_nan=False, description="Largest noise standard deviation, for pixels scaled to 0..1."
    )


class RandomSquareCropByScale(Message):
    """Takes a random square crop whose side is a random multiple of the image size."""

    proto_name: ClassVar[str] = "RandomSquareCropByScale"

    max_border: Int32 = Field(
        128,
        ge=0,
        description="Crop centers keep up to this many pixels from the image edge (halved until it fits small images).",
    )
    scale_min: Float = Field(
        0.6, allow_inf_nan=False, description="Smallest crop side as a multiple of the longer image side."
    )
    scale_max: Float = Field(
        1.3, allow_inf_nan=False, description="Largest crop side as a multiple of the longer image side."
    )
    num_scales: Int32 = Field(
        8, ge=0, description="Number of evenly spaced scales from scale_min to scale_max to choose from."
    )


class RandomScaleCropAndPadToSquare(Message):
    """Randomly scales the image, then crops or pads it to a fixed square."""

    proto_name: ClassVar[str] = "RandomScaleCropAndPadToSquare"

    output_size: Int32 = Field(512, ge=0, description="Side length of the square output in pixels.")
    scale_min: Float = Field(
        0.1, allow_inf_nan=False, description="Smallest scale, relative to fitting the image into output_size."
    )
    scale_max: Float = Field(
        2.0, allow_inf_nan=False, description="Largest scale, relative to fitting the image into output_size."
    )


class AdjustGamma(Message):
    """Applies gamma correction: output = gain * input ** gamma, with pixels scaled to 0..1."""

    proto_name: ClassVar[str] = "AdjustGamma"

    gamma: Float = Field(1.0, allow_inf_nan=False, ge=0, description="Exponent; above 1 darkens, below 1 brightens.")
    gain: Float = Field(1.0, allow_inf_nan=False, description="Constant multiplier of the result.")


class PreprocessingStep(Message):
    """One augmentation or preprocessing step; set exactly one."""

    proto_name: ClassVar[str] = "PreprocessingStep"
    oneofs: ClassVar[dict[str, tuple[str, ...]]] = {
        "preprocessing_step": (
            "normalize_image",
            "random_horizontal_flip",
            "random_pixel_value_scale",
            "random_image_scale",
            "random_rgb_to_gray",
            "random_adjust_brightness",
            "random_adjust_contrast",
            "random_adjust_hue",
            "random_adjust_saturation",
            "random_distort_color",
            "random_jitter_boxes",
            "random_crop_image",
            "random_pad_image",
            "random_crop_pad_image",
            "random_crop_to_aspect_ratio",
            "random_black_patches",
            "random_resize_method",
            "scale_boxes_to_pixel_coordinates",
            "resize_image",
            "subtract_channel_mean",
            "ssd_random_crop",
            "ssd_random_crop_pad",
            "ssd_random_crop_fixed_aspect_ratio",
            "ssd_random_crop_pad_fixed_aspect_ratio",
            "random_vertical_flip",
            "random_rotation90",
            "rgb_to_gray",
            "convert_class_logits_to_softmax",
            "random_absolute_pad_image",
            "random_self_concat_image",
            "autoaugment_image",
            "drop_label_probabilistically",
            "remap_labels",
            "random_jpeg_quality",
            "random_downscale_to_target_pixels",
            "random_patch_gaussian",
            "random_square_crop_by_scale",
            "random_scale_crop_and_pad_to_square",
            "adjust_gamma",
            "caffe_distort",
            "random_expand",
            "overlap_crop",
            "random_interpolation_resize",
            "random_mosaic",
            "random_mixup",
            "random_copy_paste",
            "large_scale_jitter",
            "random_erasing",
            "random_tile",
            "data_anchor_sampling",
            "random_square_patch",
            "user_augmentation",
        )
    }

    normalize_image: NormalizeImage | None = Field(
        None, description="Map pixel values linearly from one range to another."
    )
    random_horizontal_flip: RandomHorizontalFlip | None = Field(
        None, description="Mirror image and labels left to right, at random."
    )
    random_pixel_value_scale: RandomPixelValueScale | None = Field(
        None, description="Multiply every pixel value by its own random factor."
    )
    random_image_scale: RandomImageScale | None = Field(
        None, description="Resize the image by a random factor, keeping its aspect ratio."
    )
    random_rgb_to_gray: RandomRGBtoGray | None = Field(None, description="Turn the image gray, at random.")
    random_adjust_brightness: RandomAdjustBrightness | None = Field(
        None, description="Add a random amount to the brightness."
    )
    random_adjust_contrast: RandomAdjustContrast | None = Field(
        None, description="Scale the contrast by a random factor."
    )
    random_adjust_hue: RandomAdjustHue | None = Field(None, description="Rotate the hue by a random amount.")
    random_adjust_saturation: RandomAdjustSaturation | None = Field(
        None, description="Scale the color saturation by a random factor."
    )
    random_distort_color: RandomDistortColor | None = Field(
        None, description="Change brightness, saturation, hue and contrast at random, in a fixed order."
    )
    random_jitter_boxes: RandomJitterBoxes | None = Field(
        None, description="Move the corners of groundtruth boxes at random, relative to box size."
    )
    random_crop_image: RandomCropImage | None = Field(
        None, description="Crop at random so that at least one object stays covered."
    )
    random_pad_image: RandomPadImage | None = Field(None, description="Place the image at random on a larger canvas.")
    random_crop_pad_image: RandomCropPadImage | None = Field(None, description="Crop at random, then pad at random.")
    random_crop_to_aspect_ratio: RandomCropToAspectRatio | None = Field(
        None, description="Crop at a random place to a given aspect ratio."
    )
    random_black_patches: RandomBlackPatches | None = Field(None, description="Paint random square patches black.")
    random_resize_method: RandomResizeMethod | None = Field(
        None, description="Resize to a given size with a randomly chosen interpolation."
    )
    scale_boxes_to_pixel_coordinates: ScaleBoxesToPixelCoordinates | None = Field(
        None, description="Turn box and keypoint coordinates from 0..1 into pixels."
    )
    resize_image: ResizeImage | None = Field(None, description="Resize to a given size with a given interpolation.")
    subtract_channel_mean: SubtractChannelMean | None = Field(
        None, description="Subtract a given mean from each color channel."
    )
    ssd_random_crop: SSDRandomCrop | None = Field(
        None, description="SSD crop: pick one of several overlap rules at random, then crop."
    )
    ssd_random_crop_pad: SSDRandomCropPad | None = Field(None, description="SSD crop with random padding after it.")
    ssd_random_crop_fixed_aspect_ratio: SSDRandomCropFixedAspectRatio | None = Field(
        None, description="SSD crop brought to a fixed aspect ratio."
    )
    ssd_random_crop_pad_fixed_aspect_ratio: SSDRandomCropPadFixedAspectRatio | None = Field(
        None, description="SSD crop with padding, brought to a fixed aspect ratio."
    )
    random_vertical_flip: RandomVerticalFlip | None = Field(
        None, description="Mirror image and labels top to bottom, at random."
    )
    random_rotation90: RandomRotation90 | None = Field(
        None, description="Turn image and labels by 90 degrees counterclockwise, at random."
    )
    rgb_to_gray: RGBtoGray | None = Field(None, description="Turn every image gray.")
    convert_class_logits_to_softmax: ConvertClassLogitsToSoftmax | None = Field(
        None, description="Turn stored class logits into softmax scores, with a temperature."
    )
    random_absolute_pad_image: RandomAbsolutePadImage | None = Field(
        None, description="Pad by a random number of pixels up to given limits."
    )
    random_self_concat_image: RandomSelfConcatImage | None = Field(
        None, description="Join the image with a copy of itself, along width or height, at random."
    )
    autoaugment_image: AutoAugmentImage | None = Field(None, description="Apply a learned AutoAugment policy.")
    drop_label_probabilistically: DropLabelProbabilistically | None = Field(
        None, description="Drop the boxes of one class with a given probability."
    )
    remap_labels: RemapLabels | None = Field(None, description="Replace a set of class ids by one other id.")
    random_jpeg_quality: RandomJpegQuality | None = Field(
        None, description="Compress as JPEG at a random quality, at random."
    )
    random_downscale_to_target_pixels: RandomDownscaleToTargetPixels | None = Field(
        None, description="Shrink to a random pixel count when the image is larger, at random."
    )
    random_patch_gaussian: RandomPatchGaussian | None = Field(
        None, description="Add Gaussian noise inside a random square patch, at random."
    )
    random_square_crop_by_scale: RandomSquareCropByScale | None = Field(
        None,
        description="Crop a square with a random side scaled from the image, padding where it sticks out.",
    )
    random_scale_crop_and_pad_to_square: RandomScaleCropAndPadToSquare | None = Field(
        None, description="Scale at random, then crop and pad to a square of fixed size."
    )
    adjust_gamma: AdjustGamma | None = Field(None, description="Apply gamma correction with a given gamma and gain.")
    caffe_distort: CaffeDistort | None = Field(
        None, description="Change brightness, contrast, saturation and hue as Caffe's SSD (an extension of Boxwright)."
    )
    random_expand: RandomExpand | None = Field(
        None, description="Place the image on a larger canvas, at random (an extension of Boxwright)."
    )
    overlap_crop: OverlapCrop | None = Field(
        None, description="Crop to a window by its overlap with objects, as Caffe's SSD (an extension of Boxwright)."
    )
    random_interpolation_resize: RandomInterpolationResize | None = Field(
        None, description="Resize by an interpolation chosen at random (an extension of Boxwright)."
    )
    random_mosaic: RandomMosaic | None = Field(
        None, description="Put the image and three others around a point (an extension of Boxwright)."
    )
    random_mixup: RandomMixup | None = Field(
        None, description="Blend another image in, with its objects (an extension of Boxwright)."
    )
    random_copy_paste: RandomCopyPaste | None = Field(
        None, description="Paste objects of another image (an extension of Boxwright)."
    )
    large_scale_jitter: LargeScaleJitter | None = Field(
        None, description="Scale by a wide range, then crop and pad to one size (an extension of Boxwright)."
    )
    random_erasing: RandomErasing | None = Field(
        None, description="Fill a part of each object with noise (an extension of Boxwright)."
    )
    random_tile: RandomTile | None = Field(
        None, description="Crop a tile of a large image, around an object or anywhere (an extension of Boxwright)."
    )
    data_anchor_sampling: DataAnchorSampling | None = Field(
        None, description="Crops a square in which some object has a random anchor's size (an extension of Boxwright)."
    )
    random_square_patch: RandomSquarePatch | None = Field(
        None, description="Crops a square and resizes it (an extension of Boxwright)."
    )
    user_augmentation: UserAugmentation | None = Field(
        None, description="A transform of your own, of torchvision or of Albumentations (an extension of Boxwright)."
    )
