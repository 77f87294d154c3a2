"""Where samples come from.

Names, types, defaults and oneofs are those of the TensorFlow Object Detection API.
"""

from typing import ClassVar

from boxwright.config.field import Field
from boxwright.config.message import Bool, Enum, Float, Int32, Message, NotNegative, String, UInt32
from boxwright.config.reasons import BOXES_ONLY, QUEUE, SHUFFLED


class InstanceMaskType(Enum):
    """Values of `InstanceMaskType`."""

    DEFAULT = 0
    NUMERICAL_MASKS = 1
    PNG_MASKS = 2


class InputType(Enum):
    """Values of `InputType`."""

    INPUT_DEFAULT = 0
    TF_EXAMPLE = 1
    TF_SEQUENCE_EXAMPLE = 2


class ClassWeight(Message):
    """How much the objects of a class count in training (an extension of Boxwright)."""

    proto_name: ClassVar[str] = "ClassWeight"

    name: String = Field("", description="The class's name in the label map.")
    weight: Float = Field(
        1.0, allow_inf_nan=False, ge=0, description="What the weight of each of its objects is multiplied with."
    )


class CocoInputReader(Message):
    """Images with annotations in COCO's JSON form (an extension of Boxwright)."""

    proto_name: ClassVar[str] = "CocoInputReader"

    annotations: String = Field("", description="Path of the annotation file, instances_*.json.")
    image_folder: String = Field(
        "", description="Folder that file_name of each image is relative to; default: beside the annotation file."
    )
    load_masks: Bool = Field(False, description="Also read polygon and RLE segmentations as masks.")
    allow_paths_outside: Bool = Field(
        False, description="Whether file_name may be absolute, or lead out of image_folder by '..'."
    )


class VocInputReader(Message):
    """Images with annotations in Pascal VOC's XML form (an extension of Boxwright)."""

    proto_name: ClassVar[str] = "VocInputReader"

    root: String = Field(
        "", description="Folder holding Annotations, ImageSets and JPEGImages (or annotations and images)."
    )
    image_set: String = Field(
        "", description="Name of the list in ImageSets/Main, without .txt; default: every annotation."
    )
    allow_paths_outside: Bool = Field(
        False, description="Whether the list may name annotations outside root, absolute or by '..'."
    )


class YoloInputReader(Message):
    """Images with YOLO's text labels (an extension of Boxwright)."""

    proto_name: ClassVar[str] = "YoloInputReader"

    data: String = Field("", description="The data.yaml, or the folder that holds it.")
    split: String = Field("train", description="Which of its lists: train, val or test.")
    allow_paths_outside: Bool = Field(
        False, description="Whether data.yaml may name folders outside its own, absolute or by '..'."
    )


class OpenImagesInputReader(Message):
    """Images with Open Images' CSV annotations (an extension of Boxwright)."""

    proto_name: ClassVar[str] = "OpenImagesInputReader"

    annotations: String = Field("", description="The CSV of boxes, such as train-annotations-bbox.csv.")
    image_folder: String = Field(
        "", description="Folder of the images, named by their ImageID; default: images beside the CSV, or beside it."
    )
    class_descriptions: String = Field(
        "", description="The CSV of class codes and their names; default: its usual name beside the annotations."
    )
    image_labels: String = Field(
        "", description="The CSV of image-level labels, which say what was looked for in an image; default: none."
    )
    allow_paths_outside: Bool = Field(
        False, description="Whether an ImageID may lead out of the folder, absolute or by '..'."
    )


class WiderFaceInputReader(Message):
    """Images of faces with WIDER FACE's annotations, or RetinaFace's with landmarks (an extension of Boxwright)."""

    proto_name: ClassVar[str] = "WiderFaceInputReader"

    annotations: String = Field("", description="The text file, such as wider_face_train_bbx_gt.txt or label.txt.")
    image_folder: String = Field(
        "",
        description="Folder of the events' folders; default: WIDER_train/images or WIDER_val/images beside its folder.",
    )
    subsets: String = Field(
        "",
        description="Folder of the evaluation tool's lists of easy, medium and hard faces (its ground_truth), which "
        "wider_face_metrics needs; default: none.",
    )
    allow_paths_outside: Bool = Field(
        False, description="Whether a path may lead out of image_folder, absolute or by '..'."
    )


class FddbInputReader(Message):
    """Images of faces with FDDB's ellipses, read as the boxes around them (an extension of Boxwright)."""

    proto_name: ClassVar[str] = "FddbInputReader"

    annotations: String = Field(
        "", description="A list of ellipses, such as FDDB-fold-01-ellipseList.txt, or a pattern."
    )
    image_folder: String = Field("", description="Folder that the lists' names start from; default: beside the list.")
    allow_paths_outside: Bool = Field(
        False, description="Whether a name may lead out of image_folder, absolute or by '..'."
    )


class TFRecordInputReader(Message):
    """TFRecord files to read."""

    proto_name: ClassVar[str] = "TFRecordInputReader"

    input_path: list[String] = Field(
        default_factory=list, description="Path or wildcard pattern of TFRecord files; may be given several times."
    )


class ExternalInputReader(Message):
    """Empty extension point for a custom reader; takes no settings."""

    proto_name: ClassVar[str] = "ExternalInputReader"


class InputReader(Message):
    """Where training or evaluation data comes from and how it is read."""

    proto_name: ClassVar[str] = "InputReader"
    oneofs: ClassVar[dict[str, tuple[str, ...]]] = {
        "input_reader": (
            "tf_record_input_reader",
            "external_input_reader",
            "coco_input_reader",
            "voc_input_reader",
            "yolo_input_reader",
            "open_images_input_reader",
            "wider_face_input_reader",
            "fddb_input_reader",
        )
    }

    name: String = Field("", description="Name of this data set, used to tell several evaluation sets apart.")
    label_map_path: String = Field("", description="Path of the label map file (.pbtxt) that lists the classes.")
    shuffle: Bool = Field(True, description="Read files and examples in random order.")
    shuffle_buffer_size: UInt32 = Field(
        2048,
        no_effect=SHUFFLED,
        description="Number of examples held in memory to shuffle among; above 0 when shuffle is on.",
    )
    filenames_shuffle_buffer_size: UInt32 = Field(
        100, no_effect=SHUFFLED, description="Number of file names held to shuffle among; above 0 when shuffle is on."
    )
    num_epochs: UInt32 = Field(0, description="How often to go through the data; 0 = without end.")
    sample_1_of_n_examples: UInt32 = Field(1, description="Keep only every n-th example; 1 = keep all.")
    num_readers: UInt32 = Field(
        64, gt=0, no_effect=SHUFFLED, description="Number of input files read in turn at once; affects example order."
    )
    num_parallel_batches: UInt32 = Field(8, no_effect=QUEUE, description="Number of batches decoded in parallel.")
    num_prefetch_batches: Int32 = Field(2, no_effect=QUEUE, description="Number of finished batches prepared ahead.")
    queue_capacity: UInt32 = Field(2000, no_effect=QUEUE, description="Deprecated: capacity of the old input queue.")
    min_after_dequeue: UInt32 = Field(
        1000, no_effect=QUEUE, description="Deprecated: examples kept in the old queue for shuffling."
    )
    read_block_length: UInt32 = Field(
        32,
        gt=0,
        no_effect=SHUFFLED,
        description="Consecutive records taken from one file before moving on to the next file.",
    )
    prefetch_size: UInt32 = Field(
        512, no_effect=QUEUE, description="Deprecated: number of records to prefetch; use num_prefetch_batches."
    )
    num_parallel_map_calls: UInt32 = Field(
        64, no_effect=QUEUE, description="Deprecated: parallel decode calls; use num_parallel_batches."
    )
    drop_remainder: Bool = Field(
        True,
        no_effect="the training stream has no last batch; evaluation uses every image",
        description="Drop the last batch of an epoch if it is not full.",
    )
    num_additional_channels: Int32 = Field(
        0,
        refused="not supported; use tf_record_input_reader, coco_input_reader or voc_input_reader",
        description="Number of extra image channels stored beside RGB and joined to the image.",
    )
    num_keypoints: UInt32 = Field(0, le=10000, description="Number of keypoints per object; 0 = no keypoints.")
    keypoint_type_weight: list[Float] = Field(
        default_factory=list,
        no_effect=BOXES_ONLY,
        description="Loss weight of each keypoint type, num_keypoints entries; empty = all equal.",
    )
    max_number_of_boxes: Int32 = Field(
        100,
        note="where it is set, training uses the first so many boxes of an image; not set, all; evaluation uses all always",
        description="Ground truth per image is padded or cut to this many boxes.",
    )
    load_multiclass_scores: Bool = Field(
        False, description="Read per-class scores of the boxes (soft labels) from the examples."
    )
    load_context_features: Bool = Field(
        False,
        refused="not supported; use tf_record_input_reader, coco_input_reader or voc_input_reader",
        description="Read Context R-CNN context features from the examples.",
    )
    load_context_image_ids: Bool = Field(
        False,
        refused="not supported; use tf_record_input_reader, coco_input_reader or voc_input_reader",
        description="Read the image ids that belong to the context features.",
    )
    load_instance_masks: Bool = Field(False, description="Read instance masks from the examples.")
    mask_type: InstanceMaskType = Field(
        InstanceMaskType.NUMERICAL_MASKS,
        description="How masks are stored: NUMERICAL_MASKS (float arrays) or PNG_MASKS (encoded images).",
    )
    load_dense_pose: Bool = Field(
        False, no_effect=BOXES_ONLY, description="Read DensePose surface points from the examples."
    )
    load_track_id: Bool = Field(
        False, no_effect=BOXES_ONLY, description="Read track ids, which link the same object across frames."
    )
    load_keypoint_depth_features: Bool = Field(
        False, no_effect=BOXES_ONLY, description="Read keypoint depths and their weights from the examples."
    )
    use_display_name: Bool = Field(
        False,
        no_effect="class texts are looked up by name and by display name",
        description="Match class texts in the data to display_name instead of name in the label map.",
    )
    include_source_id: Bool = Field(
        False,
        no_effect="samples carry their id always",
        description="Pass each image's source id on as a feature of the model input.",
    )
    input_type: InputType = Field(
        InputType.TF_EXAMPLE,
        refused="not supported; use tf_record_input_reader, coco_input_reader or voc_input_reader",
        description="Record format: TF_EXAMPLE (single images) or TF_SEQUENCE_EXAMPLE (frame sequences).",
    )
    frame_index: Int32 = Field(
        -1,
        no_effect="only read for sequence examples",
        description="Frame to use from each sequence example; -1 = a random frame.",
    )
    use_keypoint_label_map: Bool = Field(
        False, no_effect=BOXES_ONLY, description="Look keypoints up by the keypoint names in the label map."
    )
    tf_record_input_reader: TFRecordInputReader | None = Field(None, description="Read the data from TFRecord files.")
    external_input_reader: ExternalInputReader | None = Field(
        None,
        refused="not supported; use tf_record_input_reader, coco_input_reader or voc_input_reader",
        description="Hook for a custom reader; the stock API has no reader behind it.",
    )
    sample_from_datasets_weights: list[NotNegative] = Field(
        default_factory=list,
        description="Relative sampling weight of each input path; empty = read all paths together.",
    )
    expand_labels_hierarchy: Bool = Field(
        False,
        refused="not supported; use tf_record_input_reader, coco_input_reader or voc_input_reader",
        description="Also label each object with the ancestors of its class, as given in the label map.",
    )
    coco_input_reader: CocoInputReader | None = Field(
        None, description="COCO annotations and a folder of images (an extension of Boxwright)."
    )
    voc_input_reader: VocInputReader | None = Field(
        None, description="A Pascal VOC folder and an image set (an extension of Boxwright)."
    )
    yolo_input_reader: YoloInputReader | None = Field(
        None, description="A data.yaml and YOLO's text labels (an extension of Boxwright)."
    )
    open_images_input_reader: OpenImagesInputReader | None = Field(
        None, description="Open Images' CSV annotations and a folder of images (an extension of Boxwright)."
    )
    wider_face_input_reader: WiderFaceInputReader | None = Field(
        None, description="WIDER FACE's annotations and its folders of images (an extension of Boxwright)."
    )
    fddb_input_reader: FddbInputReader | None = Field(
        None, description="FDDB's lists of ellipses and its folder of images (an extension of Boxwright)."
    )
    sample_list: String = Field(
        "",
        description="A file that lists which samples to take, as boxwright init splits data; empty for all "
        "(an extension of Boxwright; docs/data.md).",
    )
    class_weight: list[ClassWeight] = Field(
        default_factory=list,
        description="How much the objects of some classes count; 1 for classes not named (an extension of Boxwright).",
    )
    group_by_aspect_ratio: Bool = Field(
        False,
        description="Make batches of upright images and batches of wide ones, so that less is padding "
        "(an extension of Boxwright).",
    )
