"""What is fuzzed: for each reader good inputs to begin from, and a call that takes any bytes.

A call returns, or raises a BoxwrightError; anything else is a finding. So is an input that is accepted though
it says something else than what was written (`AcceptedError`).
"""

from __future__ import annotations

import io
import json
import os
import warnings
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image
from safetensors.torch import save

import boxwright as bw
from boxwright.config.load import dump_message, parse_message
from boxwright.config.support import report
from boxwright.data.batch import to_input
from boxwright.data.coco import CocoDataset
from boxwright.data.convert import encode_example
from boxwright.data.dataset import Dataset
from boxwright.data.image_io import decode_image, encode_jpeg, encode_png
from boxwright.data.label_map import KeypointNames, load_label_map
from boxwright.data.shapes import ShapesDataset
from boxwright.data.tf_example import RecordFields
from boxwright.data.tfrecord import TFRecordFile, write_records
from boxwright.data.tfrecord_dataset import TFRecordDataset
from boxwright.data.voc import VocDataset, write_voc_annotation
from boxwright.evaluation.pictures import draw_sample
from boxwright.nn.ops.pasted_masks import encode_mask
from boxwright.nn.optimization.trainable import Freezing, Trainable
from boxwright.nn.preprocessing import FixedShapeResizer
from boxwright.pipeline import messages as m
from boxwright.pipeline.overrides import apply_override
from boxwright.pipeline.training import build_training
from boxwright.training.log import _forget_after
from boxwright.types import Categories, Category
from boxwright.weights.restore import restore_detector
from boxwright.weights.store import CheckpointStore, read_checkpoint
from boxwright.weights.tensorflow.bundle import Bundle
from boxwright.weights.tensorflow.sstable import read_table, write_table
from tests.conftest import SMALL_MODEL, SMALL_TRAINING
from tests.fuzz.annotation_tools import TOOL_READERS
from tests.fuzz.context import CONTEXT_READERS
from tests.fuzz.exports import EXPORT_READERS
from tests.fuzz.keypoints import KEYPOINT_READERS
from tests.fuzz.layouts import LAYOUT_READERS
from tests.fuzz.reader import AcceptedError, Reader
from tests.fuzz.shards import SHARD_READERS

CLASSES = Categories((Category(0, 1, "circle"), Category(1, 2, "square"), Category(2, 3, "a b")))
RECORDS = [b"", b"one", b"x" * 500, bytes(range(256)), b"\0" * 40, b"end"]


def _text(data: bytes) -> str:
    return data.decode("utf-8", "surrogateescape")


def _config(format: Any) -> Reader:
    def read(data: bytes, folder: Path) -> None:
        config = parse_message(_text(data), m.TrainEvalPipelineConfig, format=format)
        list(report(config))
        for other in ("text", "yaml", "json"):
            again = parse_message(dump_message(config, other), m.TrainEvalPipelineConfig, format=other)
            if dump_message(again) != dump_message(config):
                raise AcceptedError(f"{other} does not come back the same")

    def seeds() -> list[bytes]:
        parts = [
            SMALL_TRAINING,
            SMALL_MODEL[:700] + "}}}",
            "eval_config { metrics_set: 'a\\n\\xc2\\x85 b' batch_size: 0x3 }",
        ]
        texts = ["eval_input_reader { tf_record_input_reader { input_path: ['x@3', \"y\"] } }", *parts]
        messages = [parse_message(text, m.TrainEvalPipelineConfig) for text in texts if "}}}" not in text]
        anchors = "a: &x [1, 2]\n" if format == "yaml" else ""
        return [*(dump_message(one, format).encode() for one in messages), anchors.encode()]

    return Reader(seeds, read)


def _overrides() -> Reader:
    def read(data: bytes, folder: Path) -> None:
        config = parse_message(SMALL_TRAINING, m.TrainEvalPipelineConfig)
        apply_override(config, _text(data))
        dump_message(config)

    lines = ["train_config.batch_size=3", "train_config { freeze_variables: 'x' }", "model.ssd.num_classes=0x10"]
    lines += ["eval_input_reader[0].label_map_path=a", "train_config.data_augmentation_options.1.random_crop_image={}"]
    return Reader(lambda: [line.encode() for line in lines], read)


def _label_map() -> Reader:
    def read(data: bytes, folder: Path) -> None:
        (folder / "m.pbtxt").write_bytes(data)
        load_label_map(folder / "m.pbtxt")

    text = (
        "item { id: 1 name: 'cat' }\nitem { id: 3 name: \"dog\\x20\" display_name: 'D' keypoints { id: 1 label: 'k' } }"
    )
    return Reader(lambda: [text.encode(), b"item: { name: 'x' id: 2 }"], read)


def _patterns() -> Reader:
    def read(data: bytes, folder: Path) -> None:
        os.environ["BOXWRIGHT_MAX_PATTERN_SECONDS"] = "1"
        network = torch.nn.Sequential(torch.nn.Linear(2, 2))
        names = {name: (name, "box_predictor/layer/kernel") for name, _ in network.named_parameters()}
        Trainable(network, Freezing(freeze=(_text(data),)), names)

    return Reader(lambda: [b"0.weight", b"^box_(predictor|x)*/.+k", b"((a*)*)*$", b"[a-z]{2,3}?(?<=r)"], read)


def _use(dataset: Dataset) -> None:
    """Do with samples what a run does."""
    for index in range(len(dataset)):
        sample = dataset[index]
        example = to_input(sample, FixedShapeResizer(32, 32))
        if not (np.isfinite(example.boxes).all() and np.isfinite(example.weights).all()):
            raise AcceptedError("what is not finite reaches the loss")
        for name in ("dense_pose", "temporal_offsets", "track_match_flags", "mask_weights", "confidences"):
            values = getattr(example, name)
            if values is not None and not np.isfinite(values).all():
                raise AcceptedError(f"{name} that is not finite reaches the loss")
        draw_sample(sample, dataset.categories)
        dataset.encoded(index)


# What may be read of a record; each alone is refused by some records.
EVERY_WAY = (
    RecordFields(),
    RecordFields(num_keypoints=2),
    RecordFields(num_keypoints=2, keypoint_depths=True),
    RecordFields(num_keypoints=3, keypoint_depths=True, keypoint_names=KeypointNames({"top": 2, "corner": 0}, 3)),
    RecordFields(masks="png"),
    RecordFields(masks="numerical"),
    RecordFields(multiclass_scores=True),
    RecordFields(track_ids=True),
    RecordFields(dense_pose=True),
    RecordFields(confidences=True),
)


@cache
def _example_seeds() -> list[bytes]:
    shapes = ShapesDataset(3, seed=3, size=(40, 50))
    samples = [shapes[number] for number in range(3)]
    for sample in samples:
        sample.keypoints = np.ones((len(sample.boxes), 2, 3), np.float32)
        sample.keypoint_depths = sample.keypoint_depth_weights = np.ones((len(sample.boxes), 2), np.float32)
        sample.track_ids = np.arange(len(sample.boxes))
        sample.temporal_offsets = np.ones((len(sample.boxes), 2), np.float32)
        sample.mask_weights = sample.track_match_flags = np.ones(len(sample.boxes), np.float32)
        sample.dense_pose = np.tile(np.array([9, 8, 1, 23, 0.5, 0.25], np.float32), (len(sample.boxes), 2, 1))
        sample.dense_pose[:1, 1] = 0  # the first has one point less
        sample.verified_labels = sample.negative_labels = sample.not_exhaustive_labels = np.array([0, 2])
    # Each class names both its keypoints.
    named = Categories(tuple(replace(category, keypoints=("top", "corner")) for category in shapes.categories))
    return [encode_example(sample, encode_jpeg(sample.image), named) for sample in samples]


def _example() -> Reader:
    def read(data: bytes, folder: Path) -> None:
        write_records(folder / "a.record", [data])
        shapes = ShapesDataset(1)
        problems: list[Exception] = []
        for wanted in EVERY_WAY:
            try:
                _use(TFRecordDataset([folder / "a.record"], shapes.categories, wanted))
            except bw.BoxwrightError as error:
                problems.append(error)
        if len(problems) == len(EVERY_WAY):
            raise problems[0]

    return Reader(_example_seeds, read)


def _records() -> Reader:
    def seeds() -> list[bytes]:
        import tempfile

        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "r"
            kinds = []
            for compression in ("none", "gzip", "zlib"):
                write_records(path, RECORDS, compression)  # type: ignore[arg-type]
                kinds.append(path.read_bytes())
        return kinds

    def read(data: bytes, folder: Path) -> None:
        (folder / "r").write_bytes(data)
        file = TFRecordFile(folder / "r")
        for index in range(len(file)):
            if file[index] not in RECORDS:
                raise AcceptedError(f"record {index} is none of those written")

    return Reader(seeds, read)


def _index() -> Reader:
    def seeds() -> list[bytes]:
        import tempfile

        with tempfile.TemporaryDirectory() as name:
            path = Path(name) / "r"
            write_records(path, RECORDS)
            os.utime(path, ns=(10**18, 10**18))
            TFRecordFile(path)
            return [(Path(name) / ".r.index").read_bytes()]

    def read(data: bytes, folder: Path) -> None:
        write_records(folder / "r", RECORDS)
        os.utime(folder / "r", ns=(10**18, 10**18))
        for name in (".r.index", ".r.index.npy"):
            (folder / name).write_bytes(data)
        file = TFRecordFile(folder / "r")
        if [file[index] for index in range(len(file))] != RECORDS:
            raise AcceptedError("a damaged index gives other records")

    return Reader(seeds, read)


@cache
def _image_seeds() -> list[bytes]:
    image = ShapesDataset(1, seed=2, size=(24, 30))[0].image
    seeds = [encode_jpeg(image), encode_png(image)]
    for format, mode in (("GIF", "P"), ("BMP", "RGB"), ("TIFF", "RGB"), ("WEBP", "RGB"), ("PPM", "L"), ("PNG", "LA")):
        buffer = io.BytesIO()
        Image.fromarray(image).convert(mode).save(buffer, format=format)
        seeds.append(buffer.getvalue())
    exif = Image.Exif()
    exif[0x0112] = 6
    buffer = io.BytesIO()
    Image.fromarray(image).save(buffer, format="JPEG", exif=exif)
    return [*seeds, buffer.getvalue()]


def _image() -> Reader:
    def read(data: bytes, folder: Path) -> None:
        pixels = decode_image(data, "image", upright=True)
        if pixels.ndim != 3 or pixels.shape[2] != 3 or pixels.dtype != np.uint8:
            raise AcceptedError(f"{pixels.shape} {pixels.dtype}")

    return Reader(_image_seeds, read)


COCO = {
    "images": [{"id": 1, "file_name": "a.jpg", "height": 24, "width": 30}, {"id": 2, "file_name": "a.jpg"}],
    "categories": [{"id": 1, "name": "circle"}, {"id": 7, "name": "square"}],
    "annotations": [
        {"id": 1, "image_id": 1, "category_id": 7, "bbox": [1, 2, 5.5, 6], "segmentation": [[1, 2, 6, 2, 6, 8, 1, 8]]},
        {
            "id": 2,
            "image_id": 2,
            "category_id": 1,
            "bbox": [0, 0, 30, 24],
            "area": 3,
            "iscrowd": 1,
            "segmentation": {"size": [24, 30], "counts": [0, 20, 700]},
        },
        {
            "id": 3,
            "image_id": 1,
            "category_id": 1,
            "bbox": [0, 0, 3, 2],
            "segmentation": encode_mask(np.eye(24, 30, dtype=np.uint8)),
        },
    ],
}


def _coco() -> Reader:
    def read(data: bytes, folder: Path) -> None:
        (folder / "a.jpg").write_bytes(_image_seeds()[0])
        (folder / "c.json").write_bytes(data)
        for masks in (False, True):
            last: Exception | None = None
            try:
                _use(CocoDataset(folder / "c.json", folder, load_masks=masks))
            except bw.BoxwrightError as error:
                last = error
        if last is not None:
            raise last

    return Reader(lambda: [json.dumps(COCO).encode()], read)


def _voc() -> Reader:
    def seeds() -> list[bytes]:
        import tempfile

        sample = ShapesDataset(1, seed=2, size=(24, 30))[0]
        with tempfile.TemporaryDirectory() as name:
            write_voc_annotation(sample, "a.jpg", ShapesDataset(1).categories, Path(name) / "a.xml")
            text = (Path(name) / "a.xml").read_bytes()
        return [text, b'<?xml version="1.0" encoding="gb2312"?>' + text]

    def read(data: bytes, folder: Path) -> None:
        for name in ("Annotations", "JPEGImages"):
            (folder / name).mkdir()
        (folder / "Annotations" / "a.xml").write_bytes(data)
        (folder / "JPEGImages" / "a.jpg").write_bytes(_image_seeds()[0])
        _use(VocDataset(folder))

    return Reader(seeds, read)


def _voc_list() -> Reader:
    xml = b"<annotation><object><name>x</name><bndbox><xmin>0</xmin><ymin>0</ymin><xmax>3</xmax><ymax>4</ymax></bndbox></object></annotation>"

    def read(data: bytes, folder: Path) -> None:
        for name in ("Annotations", "JPEGImages", "ImageSets/Main"):
            (folder / "in" / name).mkdir(parents=True)
        for stem in ("a", "a b", "c"):
            (folder / "in" / "Annotations" / f"{stem}.xml").write_bytes(xml)
            (folder / "in" / "JPEGImages" / f"{stem}.jpg").write_bytes(_image_seeds()[0])
        (folder / "outside.xml").write_bytes(xml)
        (folder / "in" / "ImageSets" / "Main" / "l.txt").write_bytes(data)
        dataset = VocDataset(folder / "in", "l")
        if not set(dataset.stems) <= {"a", "a b", "c", "./a", "./c", "./a b"} and any(".." in s for s in dataset.stems):
            raise AcceptedError(f"{dataset.stems}")
        _use(dataset)

    return Reader(lambda: [b"a\na b\nc\n", b"a -1\nc  1\n", b"../../outside\n"], read)


@cache
def small_checkpoint() -> tuple[bytes, dict[str, Any]]:
    """A checkpoint of a small run: its bytes and its content."""
    import tempfile

    from boxwright.training.state import new_state

    text = SMALL_MODEL.replace("num_classes: 4", "num_classes: 3") + SMALL_TRAINING
    text += "train_input_reader { tf_record_input_reader { input_path: 'x' } }"
    config = parse_message(text, m.TrainEvalPipelineConfig)
    torch.manual_seed(0)
    detector = bw.build_detector(config, CLASSES)
    state = new_state(detector, build_training(config))
    with tempfile.TemporaryDirectory() as name:
        path = CheckpointStore(name).save(1, state.content(dump_message(config)))
        return path.read_bytes(), read_checkpoint(path)


def _checkpoint() -> Reader:
    def read(data: bytes, folder: Path) -> None:
        (folder / "ckpt-1.pt").write_bytes(data)
        detector, _, _ = restore_detector(folder / "ckpt-1.pt")
        ours = small_checkpoint()[1]["network"]
        if any(not torch.equal(value, ours[name]) for name, value in detector.network.state_dict().items()):
            raise AcceptedError("a damaged checkpoint gives other weights")

    return Reader(lambda: [small_checkpoint()[0]], read)


@cache
def _linear() -> torch.nn.Module:
    return torch.nn.Conv2d(3, 4, 3)


def _safetensors() -> Reader:
    from boxwright.weights.load_weights import check_finite
    from boxwright.weights.sources import read_source

    def read(data: bytes, folder: Path) -> None:
        (folder / "w.safetensors").write_bytes(data)
        found = read_source(_linear(), folder / "w.safetensors")
        check_finite(found.values, "w")

    return Reader(lambda: [save({"weight": torch.ones(4, 3), "bias": torch.zeros(4)})], read)


def _table() -> Reader:
    items = {b"": b"\x08\x01", **{f"model/layer-{n}/k".encode(): bytes([n]) * n for n in range(30)}}
    return Reader(lambda: [write_table(items), write_table({})], lambda data, folder: _quiet(read_table(data, "table")))


def _quiet(_: object) -> None:
    """Take a result that nobody looks at."""


@cache
def _bundle_files() -> tuple[bytes, bytes]:
    import tempfile

    from boxwright.nn.tensorflow_names.checkpoint_keys import ATTRIBUTE
    from boxwright.weights.tensorflow.bundle import write_bundle

    with tempfile.TemporaryDirectory() as name:
        arrays = {f"model/{n}/kernel{ATTRIBUTE}": np.full((2, 3), n, np.float32) for n in range(4)}
        prefix = write_bundle(Path(name) / "ckpt-1", arrays, {"model/again": "model/1"})
        return Path(f"{prefix}.index").read_bytes(), Path(f"{prefix}.data-00000-of-00001").read_bytes()


def _bundle() -> Reader:
    """The index's entries are changed, and its checksums made good again."""

    def seeds() -> list[bytes]:
        table = read_table(_bundle_files()[0], "seed")
        return [b"\xff\xfe".join(key + b"\xff\xfd" + value for key, value in table.items())]

    def read(data: bytes, folder: Path) -> None:
        pairs = [pair.partition(b"\xff\xfd") for pair in data.split(b"\xff\xfe")]
        (folder / "ckpt-1.index").write_bytes(write_table({key: value for key, _, value in pairs}))
        (folder / "ckpt-1.data-00000-of-00001").write_bytes(_bundle_files()[1])
        bundle = Bundle(folder / "ckpt-1")
        bundle.verify()
        bundle.graph().resolve("model/again/kernel")

    return Reader(seeds, read)


def _graph() -> Reader:
    from google.protobuf.message import DecodeError

    from boxwright.weights.tensorflow.object_graph import ObjectGraph, ObjectGraphProto

    def seeds() -> list[bytes]:
        from boxwright.weights.tensorflow.object_graph import build_graph

        return [build_graph(["model/a/k/.ATTRIBUTES/VARIABLE_VALUE"], {"model/b": "model/a"}).SerializeToString()]

    def read(data: bytes, folder: Path) -> None:
        try:
            proto = ObjectGraphProto.FromString(data)
        except DecodeError:
            return
        graph = ObjectGraph(proto)
        for path in ("model/a/k", "model/b/k", "a", ""):
            graph.resolve(path)
            graph.resolve(path, "average")

    return Reader(seeds, read)


def _snappy() -> Reader:
    """Compressed blocks, in a table whose checksums hold."""
    from tests.weights.tensorflow.test_zoo_indexes import one_block_table

    plain = bytes.fromhex("000101") + b"kv" + b"\0\0\0\0\x01\0\0\0"
    copies = b"\x46\x0cabcd\x05\x04\x0e\x02\x00\xf0\x30" + b"y" * 49
    seeds = [bytes([len(plain), (len(plain) - 1) << 2]) + plain, copies]
    return Reader(lambda: seeds, lambda data, folder: _quiet(read_table(one_block_table(1, data), "table")))


def _slices() -> Reader:
    """Entries of a checkpoint of the first format, in a table whose checksums hold."""
    from boxwright.weights.tensorflow.checkpoint import SavedSlices
    from tests.weights.tensorflow.test_first_formats import saved_slices

    arrays = {"a": np.arange(24, dtype=np.float32).reshape(4, 6), "b": np.ones(3, np.float16), "c": np.array(7)}

    def seeds() -> list[bytes]:
        table = read_table(saved_slices(arrays, cut="a"), "seed")
        return [b"\xff\xfe".join(key + b"\xff\xfd" + value for key, value in table.items())]

    def read(data: bytes, folder: Path) -> None:
        pairs = [pair.partition(b"\xff\xfd") for pair in data.split(b"\xff\xfe")]
        (folder / "model.ckpt").write_bytes(write_table({key: value for key, _, value in pairs}))
        found = SavedSlices(folder / "model.ckpt")
        for name in found:
            found[name]

    return Reader(seeds, read)


def _frozen() -> Reader:
    from boxwright.weights.tensorflow.checkpoint import FrozenGraph
    from tests.weights.tensorflow.test_first_formats import frozen_graph

    arrays = {
        "FeatureExtractor/a/weights": np.ones((1, 1, 2, 3), np.float32),
        "BoxPredictor_0/ClassPredictor/biases": np.ones(3, np.float16),
    }

    def read(data: bytes, folder: Path) -> None:
        (folder / "g.pb").write_bytes(data)
        found = FrozenGraph(folder / "g.pb")
        for name in found:
            found[name]

    return Reader(lambda: [frozen_graph(arrays)], read)


def _archive() -> Reader:
    """Archives, plain and compressed; what is unpacked stays in its folder."""
    from boxwright.weights.zoo_archive import unpacked
    from tests.weights.tensorflow.test_first_formats import archive

    files = {"zoo/pipeline.config": b"model { }", "zoo/model.ckpt.index": b"x" * 600, "zoo/checkpoint": b"y"}

    def read(data: bytes, folder: Path) -> None:
        name = "a.tar.gz" if data[:2] == b"\x1f\x8b" else "a.tar"
        (folder / name).write_bytes(data)
        with unpacked(folder / name) as inside:
            if any(not path.resolve().is_relative_to(inside.resolve()) for path in inside.rglob("*")):
                raise AcceptedError("a file lies outside")
        if {path.name for path in folder.iterdir()} != {name}:
            raise AcceptedError("a file was written beside the archive")

    return Reader(lambda: [archive(files, "w:gz"), archive(files, "w")], read)


def _log() -> Reader:
    def read(data: bytes, folder: Path) -> None:
        (folder / "metrics.jsonl").write_bytes(data)
        _forget_after(folder / "metrics.jsonl", 5, 3)

    return Reader(lambda: [b'{"step": 1, "Loss/total_loss": 2.5}\n{"step": 4, "evaluation": "eval"}\n{"step"'], read)


READERS: dict[str, Reader] = {
    "config_text": _config("text"),
    "config_yaml": _config("yaml"),
    "config_json": _config("json"),
    "overrides": _overrides(),
    "label_map": _label_map(),
    "patterns": _patterns(),
    "example": _example(),
    "records": _records(),
    "index": _index(),
    "image": _image(),
    "coco": _coco(),
    "voc": _voc(),
    "voc_list": _voc_list(),
    "checkpoint": _checkpoint(),
    "safetensors": _safetensors(),
    "table": _table(),
    "bundle": _bundle(),
    "graph": _graph(),
    "snappy": _snappy(),
    "slices": _slices(),
    "frozen": _frozen(),
    "archive": _archive(),
    "log": _log(),
    **EXPORT_READERS,
    **KEYPOINT_READERS,
    **CONTEXT_READERS,
    **TOOL_READERS,
    **LAYOUT_READERS,
    **SHARD_READERS,
}
warnings.filterwarnings("ignore", message=".*is not in the label map.*")
