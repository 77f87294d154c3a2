"""Data augmentation.

Names, types, defaults and oneofs are those of the TensorFlow Object Detection API.
"""

from boxwright.config.field import AllowedValues, Enum, UInt32, field, number
from boxwright.config.message import Message
from boxwright.config.messages.augmentation_beyond_tf import (
    CaffeDistort,
    DataAnchorSampling,
    LargeScaleJitter,
    OverlapCrop,
    RandomAffineMosaic,
    RandomCopyPaste,
    RandomErasing,
    RandomExpand,
    RandomInterpolationResize,
    RandomMixup,
    RandomMosaic,
    RandomSizeCrop,
    RandomSquarePatch,
    RandomTile,
    UserAugmentation,
)
from boxwright.config.messages.crop_augmentation import (
    PAD_COLOR,
    RANDOM_COEF,
    RandomCropImage,
    RandomCropPadImage,
    RandomCropToAspectRatio,
    SSDRandomCrop,
    SSDRandomCropFixedAspectRatio,
    SSDRandomCropPad,
    SSDRandomCropPadFixedAspectRatio,
)
from boxwright.config.rules import excludes, ordered, refuse, together


class ResizeImageMethod(Enum):
    """Values of `ResizeImage.Method`."""

    AREA = 1
    BICUBIC = 2
    BILINEAR = 3
    NEAREST_NEIGHBOR = 4

class NormalizeImage(Message):
    """Maps pixel values linearly from one value range to another."""

    original_minval: float = number(0.0, "(-inf, inf)", "Input pixel value that is mapped to target_minval.")
    original_maxval: float = number(0.0, "(-inf, inf)",
        "Input pixel value that is mapped to target_maxval; must differ from original_minval.")
    target_minval: float = number(0.0, "(-inf, inf)", "Output value for original_minval.")
    target_maxval: float = number(1.0, "(-inf, inf)", "Output value for original_maxval.")

    rules = (
        refuse("", "original_minval and original_maxval are the same; set both",
            when=lambda c: c.original_minval == c.original_maxval),
    )

class RandomHorizontalFlip(Message):
    """Randomly mirrors image, boxes, masks and keypoints left to right."""

    keypoint_flip_permutation: list[int] = field([],
        "Keypoint order to apply after the flip (index of the mirrored keypoint, one entry per keypoint).")
    probability: float = number(0.5, "[0, 1]", "Chance of flipping an image.")
    dense_pose_symmetry: str = field("", "Ours: path of UV_symmetry_transforms.mat, which says where DensePose's "
        "coordinates lie on the mirrored body; needed for data with DensePose alone.")

class RandomPixelValueScale(Message):
    """Multiplies every pixel value by its own random factor and clips the result to the pixel range."""

    minval: float = number(0.9, "(-inf, inf)", "Smallest random factor.")
    maxval: float = number(1.1, "(-inf, inf)", "Largest random factor.")

    rules = (
        ordered("minval", "maxval"),
    )

class RandomImageScale(Message):
    """Resizes the whole image by a random factor, keeping its aspect ratio."""

    min_scale_ratio: float = number(0.5, "(-inf, inf)", "Smallest resize factor (1 = original size).")
    max_scale_ratio: float = number(2.0, "(-inf, inf)", "Largest resize factor (1 = original size).")

    rules = (
        ordered("min_scale_ratio", "max_scale_ratio"),
        refuse("min_scale_ratio", "expected a number above 0, found {min_scale_ratio}",
            when=lambda c: c.min_scale_ratio <= 0),
    )

class RandomRGBtoGray(Message):
    """Randomly turns the image gray while keeping three channels."""

    probability: float = number(0.1, "[0, 1]", "Chance of converting an image to gray.")

class RandomAdjustBrightness(Message):
    """Adds a random brightness offset to the image."""

    max_delta: float = number(0.2, "[0, inf)",
        "Offset is drawn from -max_delta..max_delta, as a fraction of the full pixel range (1 = 255).")

class RandomAdjustContrast(Message):
    """Scales the image contrast by a random factor."""

    min_delta: float = number(0.8, "[0, inf)", "Smallest contrast factor (1 = no change).")
    max_delta: float = number(1.25, "[0, inf)", "Largest contrast factor (1 = no change).")

    rules = (
        ordered("min_delta", "max_delta"),
    )

class RandomAdjustHue(Message):
    """Shifts the image hue by a random amount."""

    max_delta: float = number(0.02, "[0, inf)",
        "Hue shift is drawn from -max_delta..max_delta, as a fraction of the full hue circle.")

class RandomAdjustSaturation(Message):
    """Scales the color saturation by a random factor."""

    min_delta: float = number(0.8, "[0, inf)", "Smallest saturation factor (1 = no change, 0 = gray).")
    max_delta: float = number(1.25, "[0, inf)", "Largest saturation factor (1 = no change).")

    rules = (
        ordered("min_delta", "max_delta"),
    )

class RandomDistortColor(Message):
    """Applies random brightness, saturation, hue and contrast changes of fixed strength."""

    color_ordering: int = field(0,
        "Order of the color changes: 0 = bright., satur., hue, contrast; 1 = bright., contrast, satur., hue.")

    rules = (
        refuse("color_ordering", "expected 0 or 1, found {color_ordering}",
            when=lambda c: c.color_ordering not in (0, 1)),
    )

class RandomJitterBoxesJitterMode(Enum):
    """Values of `RandomJitterBoxes.JitterMode`."""

    DEFAULT = 0
    EXPAND = 1
    SHRINK = 2
    EXPAND_SYMMETRIC = 4
    SHRINK_SYMMETRIC = 5
    EXPAND_SYMMETRIC_XY = 6
    SHRINK_SYMMETRIC_XY = 7

class RandomJitterBoxes(Message):
    """Randomly moves the corners of each ground-truth box."""

    ratio: float = number(0.05, "[0, inf)", "Largest corner shift as a fraction of the box width or height.")
    jitter_mode: RandomJitterBoxesJitterMode = field(RandomJitterBoxesJitterMode.DEFAULT,
        "How corners move: DEFAULT = freely, EXPAND* = boxes only grow, SHRINK* = boxes only shrink.")

class RandomPadImage(Message):
    """Pads the image to a random larger size, with the image at a random position."""

    min_image_height: int = number(0, "[0, inf)",
        "Smallest padded height in pixels; unset = image height; set together with min_image_width.")
    min_image_width: int = number(0, "[0, inf)",
        "Smallest padded width in pixels; unset = image width; set together with min_image_height.")
    max_image_height: int = number(0, "[0, inf)",
        "Largest padded height in pixels; unset = twice the image height; set with max_image_width.")
    max_image_width: int = number(0, "[0, inf)",
        "Largest padded width in pixels; unset = twice the image width; set with max_image_height.")
    pad_color: list[float] = field([], PAD_COLOR, length=3)

    rules = (
        together("min_image_height", "min_image_width"), together("max_image_height", "max_image_width"),
    )

class RandomBlackPatches(Message):
    """Paints black square patches at random places in the image."""

    max_black_patches: int = number(10, "[0, inf)", "Number of times a patch is tried, so the most patches per image.")
    probability: float = number(0.5, "[0, 1]", "Chance that each tried patch is painted.")
    size_to_image_ratio: float = number(0.1, "[0, 1]", "Patch side length as a fraction of the shorter image side.")

class RandomResizeMethod(Message):
    """Resizes the image to a fixed size with a randomly chosen interpolation method."""

    target_height: int = number(0, "[0, inf)", "Output height in pixels.")
    target_width: int = number(0, "[0, inf)", "Output width in pixels.")

    rules = (
        refuse("", "expected target_height and target_width of at least 1, found {target_height} and {target_width}",
            when=lambda c: c.target_height < 1 or c.target_width < 1),
    )

class ScaleBoxesToPixelCoordinates(Message):
    """Converts boxes and keypoints from 0..1 coordinates to pixels; takes no settings."""

class ResizeImage(Message):
    """Resizes every image to a fixed size, ignoring its aspect ratio."""

    new_height: int = number(0, "[0, inf)", "Output height in pixels.")
    new_width: int = number(0, "[0, inf)", "Output width in pixels.")
    method: ResizeImageMethod = field(ResizeImageMethod.BILINEAR,
        "Interpolation used for resizing: AREA, BICUBIC, BILINEAR or NEAREST_NEIGHBOR.")

    rules = (
        refuse("", "expected new_height and new_width of at least 1, found {new_height} and {new_width}",
            when=lambda c: c.new_height < 1 or c.new_width < 1),
    )

class SubtractChannelMean(Message):
    """Subtracts a constant from each image channel."""

    means: list[float] = field([], "Value to subtract, one per channel, in pixel units (3 numbers for RGB).")

    rules = (
        refuse("means", "empty; set one number a channel", when=lambda c: not c.means),
    )

class RandomVerticalFlip(Message):
    """Randomly mirrors image, boxes, masks and keypoints top to bottom."""

    keypoint_flip_permutation: list[int] = field([],
        "Keypoint order to apply after the flip (index of the mirrored keypoint, one entry per keypoint).")
    probability: float = number(0.5, "[0, 1]", "Chance of flipping an image.")
    dense_pose_symmetry: str = field("", "Ours: path of UV_symmetry_transforms.mat, which says where DensePose's "
        "coordinates lie on the mirrored body; needed for data with DensePose alone.")

class RandomRotation90(Message):
    """Randomly rotates image and annotations by 90 degrees counter-clockwise."""

    keypoint_rot_permutation: list[int] = field([],
        "Keypoint order to apply after the rotation (one index per keypoint).")
    probability: float = number(0.5, "[0, 1]", "Chance of rotating an image.")

class RGBtoGray(Message):
    """Turns every image gray; takes no settings."""

class ConvertClassLogitsToSoftmax(Message):
    """Turns stored multiclass logits of each box into probabilities by softmax."""

    temperature: float = number(1.0, "(-inf, inf)",
        "Logits are divided by this first; above 1 gives flatter probabilities; must not be 0.")

    rules = (
        refuse("temperature", "expected another number than 0", when=lambda c: c.temperature == 0),
    )

class RandomAbsolutePadImage(Message):
    """Pads the image by a random number of pixels, with the image at a random position."""

    max_height_padding: int = number(0, "[0, inf)", "Upper limit of the added height in pixels.")
    max_width_padding: int = number(0, "[0, inf)", "Upper limit of the added width in pixels.")
    pad_color: list[float] = field([], PAD_COLOR, length=3)

class RandomSelfConcatImage(Message):
    """Randomly places a second copy of the image below or beside itself, boxes included."""

    concat_vertical_probability: float = number(0.1, "[0, 1]", "Chance of stacking a copy vertically.")
    concat_horizontal_probability: float = number(0.1, "[0, 1]", "Chance of placing a copy side by side.")

class AutoAugmentOperation(Message):
    """One operation of a sub-policy of autoaugment_image (an extension of Boxwright)."""

    name: str = field("", "What is done, as Rotate_BBox, Color or Cutout_Only_BBoxes.", values=AllowedValues((
        "AutoContrast", "Equalize", "Posterize", "Solarize", "SolarizeAdd", "Color", "Contrast", "Brightness",
        "Sharpness", "Cutout", "BBox_Cutout", "Rotate_BBox", "TranslateX_BBox", "TranslateY_BBox", "ShearX_BBox",
        "ShearY_BBox", "Rotate_Only_BBoxes", "ShearX_Only_BBoxes", "ShearY_Only_BBoxes", "TranslateX_Only_BBoxes",
        "TranslateY_Only_BBoxes", "Flip_Only_BBoxes", "Solarize_Only_BBoxes", "Equalize_Only_BBoxes",
        "Cutout_Only_BBoxes")))
    probability: float = number(1.0, "[0, 1]", "Chance of doing it.")
    level: float = number(5.0, "[0, 10]", "How strongly; 0..10.")

class AutoAugmentSubPolicy(Message):
    """One sub-policy of autoaugment_image; each image gets one, chosen at random (an extension of Boxwright)."""

    operation: list[AutoAugmentOperation] = field([], "What is done, in order.")

class AutoAugmentImage(Message):
    """Applies a learned AutoAugment policy for detection to image and boxes."""

    policy_name: str = field("v0",
        "Name of the policy: v0, v1, v2, v3 or test.", values=AllowedValues(("v0", "v1", "v2", "v3", "test")))
    sub_policy: list[AutoAugmentSubPolicy] = field([], "Ours: A policy of your own instead of policy_name.")

    rules = (
        excludes("policy_name", "sub_policy", why="they are two policies; keep one"),
    )

class DropLabelProbabilistically(Message):
    """Randomly removes ground-truth boxes of one class."""

    label: int = number(0, "[0, inf)", "Class id (as in the label map) whose boxes may be removed.")
    drop_probability: float = number(1.0, "[0, 1]", "Chance of removing each such box.")

class RemapLabels(Message):
    """Replaces several class ids by one class id in the ground truth."""

    original_labels: list[int] = field([], "Class ids to replace.")
    new_label: int = number(0, "[0, inf)", "Class id they are replaced by.")

class RandomJpegQuality(Message):
    """Adds JPEG compression artifacts of random strength."""

    random_coef: float = number(0.0, "[0, 1]", RANDOM_COEF)
    min_jpeg_quality: int = number(0, "[0, 100]", "Lower bound of the random JPEG quality; 0..100, lower is worse.")
    max_jpeg_quality: int = number(100, "[0, 100]", "Upper bound of the random JPEG quality; 0..100.")

    rules = (
        ordered("min_jpeg_quality", "max_jpeg_quality", below=True),
    )

class RandomDownscaleToTargetPixels(Message):
    """Shrinks large images to a random pixel count, keeping the aspect ratio."""

    random_coef: float = number(0.0, "[0, 1]", RANDOM_COEF)
    min_target_pixels: int = number(300000, "[0, inf)", "Smallest target size, in total pixels (height times width).")
    max_target_pixels: int = number(500000, "[0, inf)", "Largest target size, in total pixels (height times width).")

    rules = (
        ordered("min_target_pixels", "max_target_pixels", below=True),
        refuse("min_target_pixels", "expected at least 1, found {min_target_pixels}",
            when=lambda c: c.min_target_pixels < 1),
    )

class RandomPatchGaussian(Message):
    """Adds Gaussian noise inside one random square patch of the image."""

    random_coef: float = number(0.0, "[0, 1]", RANDOM_COEF)
    min_patch_size: int = number(1, "[0, inf)", "Smallest side length of the patch in pixels.")
    max_patch_size: int = number(250, "[0, inf)", "Largest side length of the patch in pixels.")
    min_gaussian_stddev: float = number(0.0, "[0, inf)",
        "Smallest noise standard deviation, for pixels scaled to 0..1.")
    max_gaussian_stddev: float = number(1.0, "[0, inf)", "Largest noise standard deviation, for pixels scaled to 0..1.")

    rules = (
        ordered("min_patch_size", "max_patch_size", below=True), ordered("min_gaussian_stddev", "max_gaussian_stddev"),
        refuse("min_patch_size", "expected at least 1, found {min_patch_size}", when=lambda c: c.min_patch_size < 1),
    )

class RandomSquareCropByScale(Message):
    """Takes a random square crop whose side is a random multiple of the image size."""

    max_border: int = number(128, "[0, inf)",
        "Crop centers keep up to this many pixels from the image edge (halved until it fits small images).")
    scale_min: float = number(0.6, "(-inf, inf)", "Smallest crop side as a multiple of the longer image side.")
    scale_max: float = number(1.3, "(-inf, inf)", "Largest crop side as a multiple of the longer image side.")
    num_scales: int = number(8, "[0, inf)",
        "Number of evenly spaced scales from scale_min to scale_max to choose from.")

    rules = (
        ordered("scale_min", "scale_max"),
        refuse("", "expected scale_min above 0 and num_scales of at least 1, found {scale_min} and {num_scales}",
            when=lambda c: c.scale_min <= 0 or c.num_scales < 1),
    )

class RandomScaleCropAndPadToSquare(Message):
    """Randomly scales the image, then crops or pads it to a fixed square."""

    output_size: int = number(512, "[0, inf)", "Side length of the square output in pixels.")
    scale_min: float = number(0.1, "(-inf, inf)", "Smallest scale, relative to fitting the image into output_size.")
    scale_max: float = number(2.0, "(-inf, inf)", "Largest scale, relative to fitting the image into output_size.")

    rules = (
        ordered("scale_min", "scale_max"),
        refuse("", "expected scale_min above 0 and output_size of at least 1, found {scale_min} and {output_size}",
            when=lambda c: c.scale_min <= 0 or c.output_size < 1),
    )

class AdjustGamma(Message):
    """Applies gamma correction: output = gain * input ** gamma, with pixels scaled to 0..1."""

    gamma: float = number(1.0, "[0, inf)", "Exponent; above 1 darkens, below 1 brightens.")
    gain: float = number(1.0, "(-inf, inf)", "Constant multiplier of the result.")

class PreprocessingStep(Message, oneof="preprocessing_step", outside=("skip_mosaics", "from_step", "until_step")):
    """One augmentation or preprocessing step; set exactly one, and in which training steps if not in all."""

    normalize_image: NormalizeImage | None = field(None, "Map pixel values linearly from one range to another.")
    random_horizontal_flip: RandomHorizontalFlip | None = field(None,
        "Mirror image and labels left to right, at random.")
    random_pixel_value_scale: RandomPixelValueScale | None = field(None,
        "Multiply every pixel value by its own random factor.")
    random_image_scale: RandomImageScale | None = field(None,
        "Resize the image by a random factor, keeping its aspect ratio.")
    random_rgb_to_gray: RandomRGBtoGray | None = field(None, "Turn the image gray, at random.")
    random_adjust_brightness: RandomAdjustBrightness | None = field(None, "Add a random amount to the brightness.")
    random_adjust_contrast: RandomAdjustContrast | None = field(None, "Scale the contrast by a random factor.")
    random_adjust_hue: RandomAdjustHue | None = field(None, "Rotate the hue by a random amount.")
    random_adjust_saturation: RandomAdjustSaturation | None = field(None,
        "Scale the color saturation by a random factor.")
    random_distort_color: RandomDistortColor | None = field(None,
        "Change brightness, saturation, hue and contrast at random, in a fixed order.")
    random_jitter_boxes: RandomJitterBoxes | None = field(None,
        "Move the corners of groundtruth boxes at random, relative to box size.")
    random_crop_image: RandomCropImage | None = field(None, "Crop at random so that at least one object stays covered.")
    random_pad_image: RandomPadImage | None = field(None, "Place the image at random on a larger canvas.")
    random_crop_pad_image: RandomCropPadImage | None = field(None, "Crop at random, then pad at random.")
    random_crop_to_aspect_ratio: RandomCropToAspectRatio | None = field(None,
        "Crop at a random place to a given aspect ratio.")
    random_black_patches: RandomBlackPatches | None = field(None, "Paint random square patches black.")
    random_resize_method: RandomResizeMethod | None = field(None,
        "Resize to a given size with a randomly chosen interpolation.")
    scale_boxes_to_pixel_coordinates: ScaleBoxesToPixelCoordinates | None = field(None,
        "Turn box and keypoint coordinates from 0..1 into pixels.")
    resize_image: ResizeImage | None = field(None, "Resize to a given size with a given interpolation.")
    subtract_channel_mean: SubtractChannelMean | None = field(None, "Subtract a given mean from each color channel.")
    ssd_random_crop: SSDRandomCrop | None = field(None,
        "SSD crop: pick one of several overlap rules at random, then crop.")
    ssd_random_crop_pad: SSDRandomCropPad | None = field(None, "SSD crop with random padding after it.")
    ssd_random_crop_fixed_aspect_ratio: SSDRandomCropFixedAspectRatio | None = field(None,
        "SSD crop brought to a fixed aspect ratio.")
    ssd_random_crop_pad_fixed_aspect_ratio: SSDRandomCropPadFixedAspectRatio | None = field(None,
        "SSD crop with padding, brought to a fixed aspect ratio.")
    random_vertical_flip: RandomVerticalFlip | None = field(None, "Mirror image and labels top to bottom, at random.")
    random_rotation90: RandomRotation90 | None = field(None,
        "Turn image and labels by 90 degrees counterclockwise, at random.")
    rgb_to_gray: RGBtoGray | None = field(None, "Turn every image gray.")
    convert_class_logits_to_softmax: ConvertClassLogitsToSoftmax | None = field(None,
        "Turn stored class logits into softmax scores, with a temperature.")
    random_absolute_pad_image: RandomAbsolutePadImage | None = field(None,
        "Pad by a random number of pixels up to given limits.")
    random_self_concat_image: RandomSelfConcatImage | None = field(None,
        "Join the image with a copy of itself, along width or height, at random.")
    autoaugment_image: AutoAugmentImage | None = field(None, "Apply a learned AutoAugment policy.")
    drop_label_probabilistically: DropLabelProbabilistically | None = field(None,
        "Drop the boxes of one class with a given probability.")
    remap_labels: RemapLabels | None = field(None, "Replace a set of class ids by one other id.")
    random_jpeg_quality: RandomJpegQuality | None = field(None, "Compress as JPEG at a random quality, at random.")
    random_downscale_to_target_pixels: RandomDownscaleToTargetPixels | None = field(None,
        "Shrink to a random pixel count when the image is larger, at random.")
    random_patch_gaussian: RandomPatchGaussian | None = field(None,
        "Add Gaussian noise inside a random square patch, at random.")
    random_square_crop_by_scale: RandomSquareCropByScale | None = field(None,
        "Crop a square with a random side scaled from the image, padding where it sticks out.")
    random_scale_crop_and_pad_to_square: RandomScaleCropAndPadToSquare | None = field(None,
        "Scale at random, then crop and pad to a square of fixed size.")
    adjust_gamma: AdjustGamma | None = field(None, "Apply gamma correction with a given gamma and gain.")
    caffe_distort: CaffeDistort | None = field(None,
        "Ours: change brightness, contrast, saturation and hue as Caffe's SSD.")
    random_expand: RandomExpand | None = field(None, "Ours: place the image on a larger canvas, at random.")
    overlap_crop: OverlapCrop | None = field(None,
        "Ours: crop to a window by its overlap with objects, as Caffe's SSD.")
    random_interpolation_resize: RandomInterpolationResize | None = field(None,
        "Ours: resize by an interpolation chosen at random.")
    random_mosaic: RandomMosaic | None = field(None, "Ours: put the image and three others around a point.")
    random_affine_mosaic: RandomAffineMosaic | None = field(None, "Ours: put the image and three others in quadrants.")
    random_mixup: RandomMixup | None = field(None, "Ours: blend another image in, with its objects.")
    random_copy_paste: RandomCopyPaste | None = field(None, "Ours: paste objects of another image.")
    large_scale_jitter: LargeScaleJitter | None = field(None, "Ours: scale by a wide range, then crop and pad.")
    random_erasing: RandomErasing | None = field(None, "Ours: fill a part of each object with noise.")
    random_tile: RandomTile | None = field(None, "Ours: crop a tile of a large image, around an object or anywhere.")
    data_anchor_sampling: DataAnchorSampling | None = field(None,
        "Ours: crops a square in which some object has a random anchor's size.")
    random_square_patch: RandomSquarePatch | None = field(None, "Ours: crops a square and resizes it.")
    random_size_crop: RandomSizeCrop | None = field(None, "Ours: resize, then crop a square, at random.")
    user_augmentation: UserAugmentation | None = field(None, "Ours: a transform of your own, or a library's.")
    skip_mosaics: bool = field(False, "Ours: samples that a mosaic made of several are left as they are.")
    from_step: UInt32 = number(0, "[0, inf)", "Ours: the training step from which samples are changed so.")
    until_step: UInt32 = number(0, "[0, inf)", "Ours: the training step from which they no longer are; 0 for none.")

    rules = (
        refuse("until_step", "{until_step} is not after from_step {from_step}",
            when=lambda c: c.has("until_step") and c.until_step <= c.from_step),
    )


# What treats every channel alike, however many an image has; TF's others, too, need red, green and blue.
ANY_CHANNELS = frozenset((
    "normalize_image",
    "random_horizontal_flip",
    "random_vertical_flip",
    "random_rotation90",
    "random_pixel_value_scale",
    "random_image_scale",
    "random_adjust_brightness",
    "random_adjust_contrast",
    "random_jitter_boxes",
    "random_crop_image",
    "random_crop_to_aspect_ratio",
    "random_black_patches",
    "random_resize_method",
    "resize_image",
    "scale_boxes_to_pixel_coordinates",
    "ssd_random_crop",
    "ssd_random_crop_fixed_aspect_ratio",
    "convert_class_logits_to_softmax",
    "random_self_concat_image",
    "drop_label_probabilistically",
    "remap_labels",
    "random_downscale_to_target_pixels",
    "random_patch_gaussian",
    "random_square_crop_by_scale",
    "random_scale_crop_and_pad_to_square",
    "adjust_gamma",
    "overlap_crop",
    "random_interpolation_resize",
    "random_tile",
    "random_square_patch",
    "random_size_crop",
    "data_anchor_sampling",
))
