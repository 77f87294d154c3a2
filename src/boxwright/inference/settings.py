"""What detecting in images and video needs beside a detector."""

from __future__ import annotations

from dataclasses import dataclass

from boxwright.base.errors import ConfigError
from boxwright.base.settings import setting

_PICTURES = ("jpg", "png")
_FILES = "What is written"
_LARGE = "Large images: tiling"
_VIDEOS = "Video, webcam, RTSP: tracking"
_MANY = "Very many images: --out results.parquet"


@dataclass(frozen=True, kw_only=True)
class PredictionSettings:
    """What is looked at, kept, drawn and written; `boxwright predict` has an option for each."""

    min_score: float = setting(
        0.5, "The least score (confidence) of what is kept.", least=0, most=1, flags=("--min_score", "--conf")
    )
    max_boxes: int = setting(100, "The most boxes that are drawn in a picture.", least=0)
    multi_scale: str = setting("", "Look at many sizes and mirror images, and vote: as refinedet320-voc.")
    device: str = setting("auto", "cpu, cuda, one GPU as cuda:1, or auto for a GPU where there is one.")
    tf32: bool = setting(False, "Let a GPU round factors of float32 products to 10 bits.")
    precision: str = setting("float32", "float32, bfloat16, or fastest: whichever is measured to be.")
    compile: bool = setting(False, "Compile the network; a minute or more first.")
    allow_edited: bool = setting(False, "Open an exported file that is not as `boxwright export` wrote it.")
    profile: bool = setting(False, "Print how busy reading, network, drawing and writing were.")
    pictures: bool = setting(True, "Draw a picture of each image file.", _FILES)
    picture_format: str = setting("jpg", "jpg; or png, without loss, which takes many times as long.", _FILES)
    json: bool = setting(False, "detections.json, a row an object; so it is where nothing else is asked for.", _FILES)
    coco: bool = setting(False, "coco.json, a COCO data set whose annotations have scores.", _FILES)
    csv: bool = setting(False, "detections.csv, a line an object.", _FILES)
    save_video: bool = setting(False, "Write each video (H.264) with what was found drawn into it.", _FILES)
    tile: int = setting(0, "Look at square tiles of so many pixels, and at the whole image.", _LARGE, least=0)
    overlap: float = setting(0.2, "The share of a tile that its neighbour has too.", _LARGE, least=0, most=0.9)
    merge: str = setting("nms", "Of boxes of one object: nms keeps the best, wbf averages them.", _LARGE)
    track: bool = setting(False, "Track objects: each keeps its number from frame to frame.", _VIDEOS)
    frames: int = setting(0, "Stop after so many frames or images; 0 for all.", _VIDEOS, least=0)

    def __post_init__(self) -> None:
        if self.picture_format not in _PICTURES:
            raise ConfigError(f"--picture_format {self.picture_format}: expected {' or '.join(_PICTURES)}")


@dataclass(frozen=True, kw_only=True)
class ManySettings:
    """How work on very many images is spread."""

    engine: str = setting("local", "local for processes of this machine; ray for a cluster (RAY_ADDRESS).", _MANY)
    workers: int = setting(1, "How many at a time.", _MANY, least=1)
    shards: str = setting("", "3/16 takes the third sixteenth alone, for jobs of an array.", _MANY)
    part_size: int = setting(1024, "Images of a Parquet file; the most that a kill costs.", _MANY, least=1)
    batch_size: int = setting(8, "Images that are looked at together.", _MANY, least=1)
    column: str = setting("", "Of Parquet, the column with the images, if it cannot be guessed.", _MANY)
    max_errors: float = setting(0.01, "The share of unreadable images that is no failure.", _MANY, least=0, most=1)
