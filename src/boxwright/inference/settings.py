"""Settings of detection in images and video."""

from __future__ import annotations

from dataclasses import dataclass

from boxwright.base.errors import ConfigError
from boxwright.base.settings import name_device, setting

_PICTURES = ("jpg", "png")
_FILES = "Output files"
_LARGE = "Large images: tiling"
_VIDEOS = "Video, webcam, RTSP: tracking"
# Those of inference/context_memory.py, which takes longer to import.
_HORIZONS = ("all", "year", "month", "week", "day", "hour", "minute")
_BROKEN = "Files that cannot be read"
_MANY = "Large collections: --out results.parquet"


@dataclass(frozen=True, kw_only=True)
class PredictionSettings:
    """What is detected, kept, drawn and written; `boxwright predict` has an option for each."""

    min_score: float = setting(
        0.5,
        "Confidence threshold: detections with a lower score are dropped.",
        least=0,
        most=1,
        flags=("--min_score", "--conf"),
    )
    thresholds: str = setting(
        "", "A report's thresholds.json: a confidence threshold for each class of this model; replaces --min_score."
    )
    classes: tuple[str, ...] = setting(
        (), "Detect these classes only, by name or id, separated by commas; repeatable, as a name may have a comma."
    )
    max_boxes: int = setting(100, "Maximum number of boxes drawn in a picture.", least=0)
    multi_scale: str = setting("", "Detect at many scales and in mirror images, and vote; such as refinedet320-voc.")
    device: str = setting(
        "auto",
        "cpu, cuda, one GPU as cuda:1, mps, or auto for cuda if available; runtimes have others, such as tensorrt.",
    )
    tf32: bool = setting(False, "On a GPU, round float32 matrix products to TF32 too, as convolutions are by default.")
    runtime: str = setting(
        "auto", "torch, onnxruntime, openvino; auto: that of the model, which is PyTorch unless it is an exported file."
    )
    precision: str = setting(
        "float32", "float32, bfloat16, float16, or fastest: of the first two, the one measured to be."
    )
    compile: bool = setting(False, "Compile the network; takes a minute or more first.")
    cuda_graphs: bool = setting(
        False, "On a GPU, capture the detector as one launch for each of four batch sizes; inputs of one size."
    )
    allow_edited: bool = setting(False, "Open an exported file that was modified.")
    context: str = setting("", "For Context R-CNN: a camera's memory, a .npy of `boxwright context build --banks`.")
    white_level: float = setting(
        0.0, "What is white in images of more than 8 bits, as 4095 for 12 bits; 0: as in the training data.", least=0
    )
    profile: bool = setting(False, "Print how busy reading, network, drawing and writing were.")
    pictures: bool = setting(True, "Draw a picture of each image file.", _FILES)
    picture_format: str = setting("jpg", "jpg; or png, lossless but many times slower.", _FILES)
    as_json: bool = setting(
        False,
        "Print the rows of detections.json, one per object; everything else goes to standard error.",
        _FILES,
        flags=("--json",),
    )
    coco: bool = setting(False, "coco.json, a COCO data set whose annotations have scores.", _FILES)
    csv: bool = setting(False, "detections.csv, a line per object.", _FILES)
    save_crops: bool = setting(False, "crops/CLASS, a picture of each object, cut out.", _FILES)
    save_txt: bool = setting(
        False, "labels, a file for each image in YOLO's format, and the class names in classes.txt.", _FILES
    )
    save_video: bool = setting(False, "Write each video (H.264) with detections drawn.", _FILES)
    tile: int = setting(0, "Detect in square tiles of this many pixels, and in the whole image.", _LARGE, least=0)
    overlap: float = setting(0.2, "The fraction of a tile that overlaps the next.", _LARGE, least=0, most=0.9)
    merge: str = setting("nms", "For boxes of the same object: nms keeps the best, wbf averages them.", _LARGE)
    track: bool = setting(False, "Track objects: each keeps its number across frames.", _VIDEOS)
    reidentify: float = setting(
        0.0,
        "With --track: an object gets its old number back from this cosine similarity of embeddings on; 0 for never.",
        _VIDEOS,
        least=0,
        most=1,
    )
    frames: int = setting(0, "Stop after this many frames or images; 0 for all.", _VIDEOS, least=0)
    reconnect: bool = setting(
        False,
        "Open a stream or camera again when it ends or breaks off, until Ctrl-C: after 1 to 60 s.",
        _VIDEOS,
    )
    max_errors: float = setting(
        0.0, "The fraction of files that may be unreadable; beyond it, the exit status is 1.", _BROKEN, least=0, most=1
    )
    strict: bool = setting(False, "Stop at the first file that cannot be read, rather than go on without it.", _BROKEN)

    def __post_init__(self) -> None:
        name_device(self)
        if self.picture_format not in _PICTURES:
            raise ConfigError(f"--picture_format {self.picture_format}: expected {' or '.join(_PICTURES)}")
        if self.thresholds and self.track:
            raise ConfigError("--thresholds: tracks go on at low scores, so that --track takes --min_score alone")
        if self.strict and self.max_errors:
            raise ConfigError("--strict stops at the first file that cannot be read; remove it or --max_errors")
        if self.reidentify and not self.track:
            raise ConfigError("--reidentify: objects have numbers with --track alone; add it")

    @property
    def least_score(self) -> float:
        """The least score of all classes; 0 where `thresholds` has one for each."""
        return 0.0 if self.thresholds else self.min_score


@dataclass(frozen=True, kw_only=True)
class CollectionSettings:
    """How work on large image collections is distributed."""

    engine: str = setting("local", "local for processes on this machine; ray for a cluster (RAY_ADDRESS).", _MANY)
    workers: int = setting(0, "Workers at a time; 0 for one, or for all of a Ray cluster.", _MANY, least=0)
    shards: str = setting("", "3/16 processes only the third sixteenth, for array jobs.", _MANY)
    part_size: int = setting(
        1024, "Images per Parquet file; no more are lost if the process is killed.", _MANY, least=1
    )
    batch_size: int = setting(8, "Images per batch; of other predictions, on a GPU alone.", _MANY, least=1)
    column: str = setting("", "The Parquet column with the images, if not detected.", _MANY)


@dataclass(frozen=True, kw_only=True)
class ContextSettings:
    """Which images are each other's context, and what is written; `boxwright context build` has an option for each."""

    sequence_key: str = setting("image/location", "What names a camera or sequence; or image/seq_id.")
    time_horizon: str = setting("month", "Span within which a camera's images share context: all, year … minute.")
    max_features: int = setting(2000, "Maximum number of features of an image (max_num_context_features).", least=1)
    min_score: float = setting(0.0, "Minimum score of a box that is remembered.", least=0, most=1)
    every_nth: int = setting(1, "Remember only every nth image.", least=1)
    output_type: str = setting(
        "tf_sequence_example", "Stores the context once a clip; tf_example: once an image, with its other features."
    )
    clip_length: int = setting(32, "Maximum number of images in a clip.", least=1)
    banks: bool = setting(False, "Also write banks/CAMERA.npy, each camera's newest features, for predict and export.")
    engine: str = setting("local", "local for processes on this machine; ray for a cluster (RAY_ADDRESS).")
    workers: int = setting(
        0, "How many run at a time; 0 for one per GPU, or per two cores, or all of a Ray cluster.", least=0
    )
    device: str = setting("auto", "cpu, cuda, one GPU as cuda:1, mps, or auto for cuda if available.")

    def __post_init__(self) -> None:
        name_device(self)
        for name, known in (
            ("sequence_key", ("image/location", "image/seq_id")),
            ("time_horizon", _HORIZONS),
            ("output_type", ("tf_example", "tf_sequence_example")),
        ):
            if getattr(self, name) not in known:
                raise ConfigError(f"--{name} {getattr(self, name)}: expected {', '.join(known)}")
