"""Where samples come from, and label maps.

Names, types, defaults and oneofs are those of the TensorFlow Object Detection API.
"""

from __future__ import annotations

from boxwright.base.remote import is_remote
from boxwright.config.field import AllowedValues, Enum, UInt32, field, number
from boxwright.config.message import Message
from boxwright.config.rules import QUEUE, SHUFFLED, any_of, excludes, refuse


class LVISFrequency(Enum):
    """Values of `LVISFrequency`."""

    UNSPECIFIED = 0
    FREQUENT = 1
    COMMON = 2
    RARE = 3

class StringIntLabelMapItemKeypointMap(Message, name="StringIntLabelMapItem.KeypointMap"):
    """One keypoint of a class."""

    id: int = number(0, "[0, 10000)", "Index of the keypoint, unique over the whole label map, from 0.")
    label: str = field("", "Keypoint name, unique over the whole label map.")

class StringIntLabelMapItem(Message):
    """One class of the label map."""

    name: str = field("", "Class name as it appears in the data (class text).")
    id: int = number(0, "[0, inf)", "Class number as it appears in the data; start at 1, 0 is reserved for background.")
    display_name: str = field("", "Readable class name for display; empty = use name.")
    keypoints: list[StringIntLabelMapItemKeypointMap] = field([], "Keypoints of this class.")
    ancestor_ids: list[int] = field([],
        "Ids of the more general classes above this one, for expand_labels_hierarchy.")
    descendant_ids: list[int] = field([],
        "Ids of the more specific classes below this one, for expand_labels_hierarchy.")
    frequency: LVISFrequency = field(LVISFrequency.UNSPECIFIED, "LVIS frequency group of the class: FREQUENT, COMMON, "
        "RARE or UNSPECIFIED.")
    instance_count: int = field(0,
        "Number of annotated objects of this class in the data set (LVIS).",
        no_effect="TensorFlow hands it to LVIS's evaluator, which computes nothing from it")

class StringIntLabelMap(Message):
    """Label map: the list of classes."""

    item: list[StringIntLabelMapItem] = field([], "One class; repeat for each class.")


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

    name: str = field("", "The class's name in the label map.")
    weight: float = number(1.0, "[0, inf)", "What the weight of each of its objects is multiplied with.")

class CocoInputReader(Message):
    """Images with annotations in COCO's JSON form, or an annotation tool's (an extension of Boxwright)."""

    annotations: str = field("", "Path of the annotation file, instances_*.json, or of an export of CVAT (images 1.1), "
        "Label Studio (JSON) or FiftyOne (FiftyOneImageDetectionDataset).")
    image_folder: str = field("",
        "Folder that file_name of each image is relative to; default: beside the annotation file.")
    load_masks: bool = field(False, "Also read polygon and RLE segmentations as masks.")
    allow_paths_outside: bool = field(False, "Whether file_name may be absolute, or lead out of image_folder by '..'.")

class VocInputReader(Message):
    """Images with annotations in Pascal VOC's XML form (an extension of Boxwright)."""

    root: str = field("", "Folder holding Annotations, ImageSets and JPEGImages (or annotations and images).")
    image_set: str = field("", "Name of the list in ImageSets/Main, without .txt; default: every annotation.")
    allow_paths_outside: bool = field(False, "Whether the list may name annotations outside root, absolute or by '..'.")

class YoloInputReader(Message):
    """Images with YOLO's text labels (an extension of Boxwright)."""

    data: str = field("", "The data.yaml, or the folder that holds it.")
    split: str = field("train", "Which of its lists: train, val or test.")
    allow_paths_outside: bool = field(False, "Whether data.yaml may name folders outside its own, absolute or by '..'.")

class OpenImagesInputReader(Message):
    """Images with Open Images' CSV annotations (an extension of Boxwright)."""

    annotations: str = field("", "The CSV of boxes, such as train-annotations-bbox.csv.")
    image_folder: str = field("",
        "Folder of the images, named by their ImageID; default: images beside the CSV, or beside it.")
    class_descriptions: str = field("",
        "The CSV of class codes and their names; default: its usual name beside the annotations.")
    image_labels: str = field("",
        "The CSV of image-level labels, which say what was looked for in an image; default: none.")
    allow_paths_outside: bool = field(False, "Whether an ImageID may lead out of the folder, absolute or by '..'.")

class WiderFaceInputReader(Message):
    """Images of faces with WIDER FACE's annotations, or RetinaFace's with landmarks (an extension of Boxwright)."""

    annotations: str = field("", "The text file, such as wider_face_train_bbx_gt.txt or label.txt.")
    image_folder: str = field("",
        "Folder of the events' folders; default: WIDER_train/images or WIDER_val/images beside its folder.")
    subsets: str = field("", "Folder of the evaluation tool's lists of easy, medium and hard faces (its ground_truth), "
        "which wider_face_metrics needs; default: none.")
    allow_paths_outside: bool = field(False, "Whether a path may lead out of image_folder, absolute or by '..'.")

class FddbInputReader(Message):
    """Images of faces with FDDB's ellipses, read as the boxes around them (an extension of Boxwright)."""

    annotations: str = field("", "A list of ellipses, such as FDDB-fold-01-ellipseList.txt, or a pattern.")
    image_folder: str = field("", "Folder that the lists' names start from; default: beside the list.")
    allow_paths_outside: bool = field(False, "Whether a name may lead out of image_folder, absolute or by '..'.")

class TFRecordInputReader(Message):
    """TFRecord files to read."""

    input_path: list[str] = field([], "Path or wildcard pattern of TFRecord files; may be given several times.")

_BOXES_ARE = AllowedValues(("xywh", "xyxy", "normalized_xywh", "normalized_xyxy"))
_BOXES_MEANING = ("What the numbers of bbox are: xywh, as of COCO, or xyxy, in pixels; normalized_xywh or "
    "normalized_xyxy in shares of the picture.")

class WebDatasetInputReader(Message):
    """WebDataset's tar archives of pictures and their .json (an extension of Boxwright)."""

    input_path: list[str] = field([], "Path, address or wildcard pattern of archives; may be given several times.")
    boxes_are: str = field("xywh", _BOXES_MEANING, values=_BOXES_ARE)

class ParquetInputReader(Message):
    """Parquet files with columns image and objects (an extension of Boxwright)."""

    input_path: list[str] = field([], "Path, address or wildcard pattern of files; may be given several times.")
    boxes_are: str = field("xywh", _BOXES_MEANING, values=_BOXES_ARE)

class ExternalInputReader(Message):
    """Empty extension point for a custom reader; takes no settings."""

_SHUFFLED_WHOLE = "for archives, Parquet and records at an address; of other data each epoch is shuffled as a whole"

def _is_shuffled_whole(reader: InputReader) -> bool:
    """Return whether a reader reads nothing in sequence."""
    if reader.web_dataset_input_reader is not None or reader.parquet_input_reader is not None:
        return False
    records = reader.tf_record_input_reader
    return records is None or not any(is_remote(path) for path in records.input_path)

_WITH_KEYPOINTS = ("tf_record_input_reader", "coco_input_reader", "web_dataset_input_reader", "parquet_input_reader")

class InputReader(Message):
    """Where training or evaluation data comes from and how it is read."""

    name: str = field("", "Name of this data set, used to tell several evaluation sets apart.")
    label_map_path: str = field("", "Path of the label map file (.pbtxt) that lists the classes.")
    shuffle: bool = field(True, "Read files and examples in random order.")
    shuffle_buffer_size: UInt32 = number(2048, "[0, inf)",
        "Number of examples to shuffle among, of data that are read in sequence.",
        note=_SHUFFLED_WHOLE, note_when=_is_shuffled_whole)
    filenames_shuffle_buffer_size: UInt32 = field(100,
        "Number of file names held to shuffle among; above 0 when shuffle is on.", no_effect=SHUFFLED)
    num_epochs: UInt32 = field(0, "How often to go through the data; 0 = without end.")
    sample_1_of_n_examples: UInt32 = field(1, "Keep only every n-th example; 1 = keep all.")
    num_readers: UInt32 = number(64, "(0, inf)",
        "Number of input files read in turn at once of data that are read in sequence; affects example order.",
        note=_SHUFFLED_WHOLE, note_when=_is_shuffled_whole)
    num_parallel_batches: UInt32 = field(8, "Number of batches decoded in parallel.", no_effect=QUEUE)
    num_prefetch_batches: int = field(2, "Number of finished batches prepared ahead.", no_effect=QUEUE)
    queue_capacity: UInt32 = field(2000, "Deprecated: capacity of the old input queue.", no_effect=QUEUE)
    min_after_dequeue: UInt32 = field(1000,
        "Deprecated: examples kept in the old queue for shuffling.", no_effect=QUEUE)
    read_block_length: UInt32 = number(32, "(0, inf)",
        "Consecutive records taken from one file before moving on to the next file, of data that are read in sequence.",
        note=_SHUFFLED_WHOLE, note_when=_is_shuffled_whole)
    prefetch_size: UInt32 = field(512,
        "Deprecated: number of records to prefetch; use num_prefetch_batches.", no_effect=QUEUE)
    num_parallel_map_calls: UInt32 = field(64,
        "Deprecated: parallel decode calls; use num_parallel_batches.", no_effect=QUEUE)
    drop_remainder: bool = field(True,
        "Drop the last batch of an epoch if it is not full.",
        no_effect="the training stream has no last batch; evaluation uses every image")
    num_additional_channels: int = number(0, "[0, 29]",
        "Number of extra image channels stored beside RGB, as image/additional_channels/encoded, and joined to it.")
    num_keypoints: UInt32 = number(0, "(-inf, 10000]", "Number of keypoints per object; 0 = no keypoints.")
    keypoint_type_weight: list[float] = field([],
        "Loss weight of each keypoint type, num_keypoints entries; empty = all equal.",
        no_effect="TensorFlow computes weights of keypoints from it, and hands them to no model: core/model.py's "
            "provide_groundtruth does not take them")
    max_number_of_boxes: int = field(100,
        "Ground truth per image is padded or cut to this many boxes.",
        note="where it is set, training uses the first so many boxes of an image; not set, all; evaluation uses all "
             "always")
    load_multiclass_scores: bool = field(False, "Read per-class scores of the boxes (soft labels) from the examples.")
    load_context_features: bool = field(False,
        "Read Context R-CNN context features from the examples.")
    load_context_image_ids: bool = field(False,
        "Read the image ids that belong to the context features.")
    load_instance_masks: bool = field(False, "Read instance masks from the examples.")
    mask_type: InstanceMaskType = field(InstanceMaskType.NUMERICAL_MASKS,
        "How masks are stored: NUMERICAL_MASKS (float arrays) or PNG_MASKS (encoded images).")
    load_dense_pose: bool = field(False, "Read DensePose surface points from the examples.")
    load_track_id: bool = field(False,
        "Read track ids, which link the same object across frames, and offsets from the frame before.")
    load_keypoint_depth_features: bool = field(False,
        "Read keypoint depths and their weights from the examples.")
    use_display_name: bool = field(False, "Match class texts in the data to display_name instead of name in the label "
        "map.", no_effect="class texts are looked up by name and by display name")
    include_source_id: bool = field(False,
        "Pass each image's source id on as a feature of the model input.", no_effect="samples carry their id always")
    input_type: InputType = field(InputType.TF_EXAMPLE,
        "Record format: TF_EXAMPLE (single images) or TF_SEQUENCE_EXAMPLE (frame sequences).",
        note="every frame of a sequence is a sample; TensorFlow trains on one of each sequence at a time, and "
             "evaluates on all")
    frame_index: int = number(-1, "[-1, inf)",
        "The only frame to take of each sequence example; -1 = every frame.",
        note="also in evaluation, where TensorFlow always takes every frame")
    use_keypoint_label_map: bool = field(False, "Look each object's keypoints up by their names in the record, "
        "image/object/keypoint/text, among those in the label map.")
    tf_record_input_reader: TFRecordInputReader | None = field(None,
        "Read the data from TFRecord files.", oneof="input_reader")
    external_input_reader: ExternalInputReader | None = field(None,
        "Data that the program gives itself, in Python: boxwright.train(config, dataset=...).", oneof="input_reader")
    sample_from_datasets_weights: list[float] = number([], "[0, inf)",
        "Relative sampling weight of each input path; empty = read all paths together.")
    expand_labels_hierarchy: bool = field(False, "Also label each object with the ancestors of its class, as given in "
        "the label map.")
    coco_input_reader: CocoInputReader | None = field(None,
        "Ours: COCO annotations and a folder of images.", oneof="input_reader")
    voc_input_reader: VocInputReader | None = field(None,
        "Ours: A Pascal VOC folder and an image set.", oneof="input_reader")
    yolo_input_reader: YoloInputReader | None = field(None,
        "Ours: A data.yaml and YOLO's text labels.", oneof="input_reader")
    open_images_input_reader: OpenImagesInputReader | None = field(None,
        "Ours: open Images' CSV annotations and a folder of images.", oneof="input_reader")
    wider_face_input_reader: WiderFaceInputReader | None = field(None,
        "Ours: WIDER FACE's annotations and its folders of images.", oneof="input_reader")
    fddb_input_reader: FddbInputReader | None = field(None,
        "Ours: FDDB's lists of ellipses and its folder of images.", oneof="input_reader")
    web_dataset_input_reader: WebDatasetInputReader | None = field(None,
        "Ours: WebDataset's archives, read in sequence.", oneof="input_reader")
    parquet_input_reader: ParquetInputReader | None = field(None,
        "Ours: Parquet files of pictures and objects, read in sequence.", oneof="input_reader")
    hide_ignored_regions: bool = field(False, "Ours: whether regions to ignore (crowds) are covered by gray, so that "
        "training does not learn the objects in them as background, as TensorFlow does. For training readers.")
    ignore_exif: bool = field(False, "Ours: whether labels refer to pixels as stored, where the annotation's own size "
        "does not show that they refer to the picture as viewers turn it: for a tool that ignores EXIF. TFRecords are "
        "always read as stored. A run that began before this field existed keeps true.")
    white_level: float = number(0.0, "[0, inf)", "Ours: the value that is white in images of floats, or of more than "
        "8 bits: 1, 255, 1023, 4095, 16383, 65535 or another. 0 = measured when a run begins, which writes it here; of "
        "TFRecords 65535, as in TensorFlow. Detection takes it for such images.")
    sample_list: str = field("", "A file that lists which samples to take, as boxwright init splits data; empty for "
        "all (an extension of Boxwright; docs/data.md).")
    class_weight: list[ClassWeight] = field([],
        "Ours: how much the objects of some classes count; 1 for classes not named.")
    load_confidences: bool = field(False,
        "Ours: read how sure the classes of objects are, for ssd.use_confidences_as_targets.")
    group_by_aspect_ratio: bool = field(False,
        "Ours: make batches of upright images and batches of wide ones, so that less is padding.")

    rules = (
        any_of("input_reader"),
        refuse("load_instance_masks", "Open Images' masks are not read from CSV; convert them to COCO's",
            when=lambda c: c.load_instance_masks and c.open_images_input_reader is not None),
        refuse("expand_labels_hierarchy", "it is for tf_record_input_reader's TF_EXAMPLE, as in TensorFlow; remove it",
            when=lambda c: c.expand_labels_hierarchy and (
                c.tf_record_input_reader is None or c.input_type.name == "TF_SEQUENCE_EXAMPLE")),
        refuse("num_additional_channels", "they are read from tf_record_input_reader's TF_EXAMPLE alone, "
            "image/additional_channels/encoded; remove it",
            when=lambda c: c.num_additional_channels and (
                c.tf_record_input_reader is None or c.input_type.name == "TF_SEQUENCE_EXAMPLE")),
        refuse("num_keypoints", "keypoints are read from records, COCO's files, archives and Parquet alone; remove it",
            when=lambda c: c.num_keypoints and c.which("input_reader") not in _WITH_KEYPOINTS),
        refuse("use_keypoint_label_map", "records name keypoints in tf_record_input_reader's TF_EXAMPLE alone, as in "
            "TensorFlow (COCO's files do always); remove it",
            when=lambda c: c.use_keypoint_label_map and (c.tf_record_input_reader is None or _has_sequences(c))),
        refuse("use_keypoint_label_map", "set num_keypoints beside it: one more than the label map's largest keypoint "
            "id; or remove it",
            when=lambda c: c.use_keypoint_label_map and not c.num_keypoints),
        refuse("load_dense_pose", "it is read from tf_record_input_reader and coco_input_reader alone; remove it",
            when=lambda c: c.load_dense_pose and c.tf_record_input_reader is None and c.coco_input_reader is None),
        refuse("load_track_id", "tracks are read from tf_record_input_reader and coco_input_reader alone; remove it",
            when=lambda c: c.load_track_id and c.tf_record_input_reader is None and c.coco_input_reader is None),
        refuse("load_confidences", "they are read from tf_record_input_reader alone; remove it",
            when=lambda c: c.load_confidences and c.tf_record_input_reader is None),
        refuse("load_multiclass_scores", "they are read from tf_record_input_reader alone; remove it",
            when=lambda c: c.load_multiclass_scores and c.tf_record_input_reader is None),
        refuse("load_context_features", "they are read from tf_record_input_reader alone; remove it",
            when=lambda c: c.load_context_features and c.tf_record_input_reader is None),
        refuse("load_context_image_ids", "they are read from tf_record_input_reader alone; remove it",
            when=lambda c: c.load_context_image_ids and c.tf_record_input_reader is None),
        refuse("input_type", "sequences are read from tf_record_input_reader alone; remove it",
            when=lambda c: _has_sequences(c) and c.tf_record_input_reader is None),
        refuse("input_type", "TensorFlow has no reader of INPUT_DEFAULT; use TF_EXAMPLE or TF_SEQUENCE_EXAMPLE",
            when=lambda c: c.input_type.name == "INPUT_DEFAULT"),
        refuse("frame_index", "it goes with input_type: TF_SEQUENCE_EXAMPLE, as in TensorFlow; remove it",
            when=lambda c: c.frame_index != -1 and not _has_sequences(c)),
        refuse("max_number_of_boxes", "expected at least 1, found {max_number_of_boxes}",
            when=lambda c: c.has("max_number_of_boxes") and c.max_number_of_boxes < 1),
        refuse("sample_from_datasets_weights", "expected weights of 0 or more, not all of them 0",
            when=lambda c: c.sample_from_datasets_weights and sum(c.sample_from_datasets_weights) <= 0),
        excludes("group_by_aspect_ratio", "sample_from_datasets_weights", why="it goes with one source"),
    )


def _has_sequences(config: InputReader) -> bool:
    return config.input_type.name == "TF_SEQUENCE_EXAMPLE"
