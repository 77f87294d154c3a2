"""Inputs of others that were once not met with a clear error: the folder that BOXWRIGHT_FUZZ names.

A file NAME.txt says in its first line, with its folder, which reader it is for; NAME.bin is the input. Where
there is none, the second line says what was changed, and that is done again here.
"""

from __future__ import annotations

import ast
import re
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

import boxwright as bw
from boxwright.config.load import dump_message, parse_message
from boxwright.data.batch import collate, to_input
from boxwright.data.shapes import ShapesDataset
from boxwright.data.tf_example import decode_example, read_features
from boxwright.evaluation.pictures import draw_sample
from boxwright.pipeline import messages as m
from boxwright.pipeline.overrides import apply_override
from boxwright.training.state import new_state
from boxwright.weights.restore import restore_detector
from boxwright.weights.store import save_archive
from tests.conftest import SMALL_MODEL, SMALL_TRAINING, extra_folder
from tests.fuzz.guard import guarded
from tests.fuzz.reader import AcceptedError
from tests.fuzz.readers import CLASSES, EVERY_WAY, READERS, small_checkpoint

FOLDER = extra_folder("BOXWRIGHT_FUZZ")
CASES = sorted(FOLDER.rglob("*/*.txt")) if FOLDER else []
# What has no input beside it and cannot be done again from its second line; each has a test of its own by that name.
ELSEWHERE = {
    "t1_config crafted": "tests/config/test_hostile.py",
    "t1_config yaml+json": "tests/config/test_hostile.py",
    "t2_labelmap crafted": "tests/config/test_hostile.py",
    "t3_tfrecord example crafted": "tests/data/test_hostile.py",
    "t3_tfrecord features": "tests/data/test_hostile.py",
    "t4_image crafted": "tests/data/test_hostile.py",
    "t5_coco_voc coco traversal": "tests/data/test_hostile.py",
    "t5_coco_voc coco crafted": "tests/data/test_hostile.py",
    "t5_coco_voc voc crafted": "tests/data/test_hostile.py",
    "t6_checkpoint bomb": "tests/weights/test_hostile.py",
    "t6_checkpoint bundle crafted": "tests/weights/tensorflow/test_hostile.py",
    "t6_checkpoint bundle graph": "tests/weights/tensorflow/test_hostile.py",
    "t6_checkpoint bundle table": "tests/weights/tensorflow/test_hostile.py",
    "t6_checkpoint ours bytes": "tests/weights/test_hostile.py",
    "t6_checkpoint ours going on": "tests/weights/test_hostile.py",
    "t6_checkpoint safetensors crafted": "tests/weights/test_hostile.py",
    "t6_checkpoint folders": "tests/weights/tensorflow/test_hostile.py",
    "t9_data detect()": "tests/nn/test_hostile.py",
    "t9_data sets": "tests/training/test_hostile.py",
}
Call = Callable[[], Any]


def tag_of(path: Path) -> str:
    first = path.read_text(errors="replace").splitlines()[0]
    return f"{path.parent.name} {first.partition(']')[0].removeprefix('[')}"


def small_config() -> m.TrainEvalPipelineConfig:
    return parse_message(SMALL_MODEL + SMALL_TRAINING, m.TrainEvalPipelineConfig)


def build_and_step(change: str) -> None:
    """Set fields as `.model[0].ssd[0].x=nan; …`, build, and take a step forward and backward."""
    config = small_config()
    for one in change.split("; "):
        path, _, value = one.partition("=")
        path = re.sub(r"\[0\]", "", path.lstrip("."))
        if not value.startswith("[") and not re.fullmatch(r"-?[\w.+-]+", value):
            value = f'"{value}"'
        if path.endswith(("aspect_ratios", "scales")):
            value = f"[{value}]"
        apply_override(config, f"{path}={value}")
    detector = bw.build_detector(config)
    shapes = ShapesDataset(2, seed=1, size=(64, 64))
    batch = collate([to_input(shapes[number], detector.preprocessor.resizer) for number in range(2)])
    detector.train()
    inputs = detector.preprocessor.normalize(batch.images, batch.true_sizes)
    losses = detector.criterion(detector.predict(inputs), batch.targets)
    torch.stack(list(losses.values())).sum().backward()
    detector.eval()
    detector.detect([shapes[0].image])


def round_trip(data: bytes) -> None:
    """("json", text, number) through a configuration in that format."""
    format, text, _ = _tuple(data, 3)
    config = m.TrainEvalPipelineConfig(train_config=m.TrainConfig(freeze_variables=[text], fine_tune_checkpoint=text))
    again = parse_message(dump_message(config, format), m.TrainEvalPipelineConfig, format=format)
    if again != config:
        raise AcceptedError(f"{format}: {text!r} comes back as {again.train_config}")


def _tuple(data: bytes, count: int) -> tuple[Any, ...]:
    source = data.decode()
    found = ast.literal_eval(re.sub(r"(?<![\w'])(-?)(inf|nan)(?=[,)])", "None", source))
    assert len(found) == count
    return tuple(found)


def crafted_config(data: bytes) -> None:
    what, text = _tuple(data, 2)
    if what == "override":
        apply_override(small_config(), text)
    else:
        parse_message(text, m.TrainEvalPipelineConfig, format=what)


def paths(data: bytes, folder: Path) -> None:
    """A piece of configuration, used as a run would."""
    text = ast.literal_eval(data.decode()).replace("%LM%", str(folder / "m.pbtxt"))
    (folder / "m.pbtxt").write_text("item { id: 1 name: 'x' }")
    config = small_config()
    apply_override(config, text)
    if config.train_input_reader is None:
        apply_override(config, "train_input_reader { tf_record_input_reader { input_path: 'none' } }")
    bw.build_detector(config)
    bw.train(config, folder / "run", bw.RunSettings(workers=0, evaluate=False))


def example(data: bytes) -> None:
    shapes = ShapesDataset(1)
    last: Exception | None = None
    for wanted in EVERY_WAY:
        try:
            sample = decode_example(read_features(data, "record 0"), shapes.categories, "record 0", wanted)
            if not np.isfinite(sample.weights).all():
                raise AcceptedError("a weight that is not finite")
            draw_sample(sample, shapes.categories)
        except bw.BoxwrightError as error:
            last = error
    if last is not None:
        raise last


def flipped_png(data: bytes, folder: Path) -> None:
    READERS["image"].read(_tuple(data, 2)[1], folder)
    raise AcceptedError("a PNG whose checksum does not hold")


def names(data: bytes, folder: Path) -> None:
    """(file name, class) written as VOC and read back."""
    from dataclasses import replace

    from boxwright.data.convert import write_voc
    from boxwright.data.voc import VocDataset
    from boxwright.types import Categories, Category

    file, kind = _tuple(data, 2)
    shapes = ShapesDataset(2, seed=1, size=(20, 20))

    class Named:
        name, categories, parts = "named", Categories((Category(0, 1, kind),)), (2,)

        def __len__(self) -> int:
            return 2

        def __getitem__(self, index: int) -> Any:
            return replace(shapes[index], labels=np.zeros_like(shapes[index].labels), masks=None)

        def encoded(self, index: int) -> tuple[bytes, str]:
            return shapes.encoded(index)[0], file

    write_voc(Named(), folder / "v")
    for image_set in ("", "all"):
        again = VocDataset(folder / "v", image_set)
        if [len(again[index].boxes) for index in range(2)] != [len(shapes[index].boxes) for index in range(2)]:
            raise AcceptedError("other samples")
        if [category.name for category in again.categories] != [kind]:
            raise AcceptedError("another class")


def traversal(data: bytes, folder: Path) -> None:
    import json

    (folder / "in").mkdir()
    Image.new("RGB", (8, 8)).save(folder / "secret.png")
    content = {"images": [{"id": 1, "file_name": ast.literal_eval(data.decode())}], "annotations": []}
    (folder / "in" / "c.json").write_text(json.dumps({**content, "categories": [{"id": 1, "name": "x"}]}))
    from boxwright.data.coco import CocoDataset

    _ = CocoDataset(folder / "in" / "c.json", folder / "in")[0]
    raise AcceptedError("read from outside")


def content(change: str, folder: Path) -> None:
    """Change fields of a checkpoint as `no x; y='{}'; network NAME`, with a digest that holds; restore and resume."""
    fields = dict(small_checkpoint()[1])
    for one in change.split("; "):
        if one.startswith("no "):
            fields.pop(one[3:])
        elif one.startswith("network "):
            name = one.split()[1].split("=")[0]
            fields["network"] = {**fields["network"], name: torch.zeros(7)}
        else:
            name, _, value = one.partition("=")
            fields[name] = _value(value)
    with (folder / "ckpt-1.pt").open("w+b") as file:
        save_archive(fields, file)
    last: Exception | None = None
    for use in (restore_detector, resume):
        try:
            use(folder)
        except bw.BoxwrightError as error:
            last = error
    if last is not None:
        raise last


def _value(text: str) -> Any:
    """Read a value as the corpus shows it: its repr, cut off where it is long."""
    text = str(ast.literal_eval(text)) if text[:1] in "'\"" else text
    if text.startswith(("tensor", "{'weight'")):
        return torch.zeros(3) if text.startswith("tensor") else {"weight": torch.zeros(1)}
    if text.startswith("[{'label': 'x'"):
        return [{"label": "x", "id": 1, "name": "a"}]
    try:
        return ast.literal_eval(text)
    except (ValueError, SyntaxError):
        return [{"label": 0, "id": 1, "name": "a", "more": 2}] if text.startswith("[{") else text


def resume(folder: Path) -> None:
    from boxwright.pipeline.training import build_training
    from boxwright.weights.store import find_checkpoint

    _, found = find_checkpoint(folder)
    config = parse_message(small_checkpoint()[1]["config"], m.TrainEvalPipelineConfig)
    state = new_state(bw.build_detector(config, CLASSES), build_training(config))
    state.restore(found)


def call_of(path: Path, folder: Path) -> Call | None:
    """Return what does again what a case did; None where the case has a test of its own elsewhere."""
    tag, binary = tag_of(path), path.with_suffix(".bin")
    change = path.read_text(errors="replace").split("\n")[1]
    if tag in ("t1_config build", "t1_config trainstep"):
        return lambda: build_and_step(change)
    if tag == "t6_checkpoint ours content":
        return lambda: content(change, folder)
    if tag == "t9_data detect()" or not binary.exists():
        return None
    data = binary.read_bytes()
    readers = {
        "t2_labelmap crafted": "label_map",
        "t3_tfrecord index": "index",
        "t3_tfrecord index crafted": "index",
        "t4_image crafted": "image",
        "t4_image exif": "image",
        "t5_coco_voc voc": "voc",
        "t5_coco_voc voc crafted": "voc",
        "t5_coco_voc voc lists": "voc_list",
    }
    if tag in readers:
        return lambda: READERS[readers[tag]].read(data, folder)
    others: dict[str, Call] = {
        "t1_config roundtrip": lambda: round_trip(data),
        "t1_config crafted": lambda: crafted_config(data),
        "t1_config paths": lambda: paths(data, folder),
        "t3_tfrecord features": lambda: example(data),
        "t3_tfrecord example crafted": lambda: example(data),
        "t3_tfrecord proto": lambda: example(data),
        "t3_tfrecord raw crafted": lambda: _samples(data, folder),
        "t4_image png bit flips": lambda: flipped_png(data, folder),
        "t5_coco_voc coco": lambda: READERS["coco"].read(_json(data), folder),
        "t5_coco_voc coco crafted": lambda: READERS["coco"].read(_json(data), folder),
        "t5_coco_voc coco traversal": lambda: traversal(data, folder),
        "t5_coco_voc names": lambda: names(data, folder),
        "t6_checkpoint files": lambda: READERS["checkpoint"].read(_tuple(data, 2)[1], folder),
        "t9_data augment": lambda: augment(data),
        "t9_data sets": lambda: None,
    }
    return others.get(tag) if tag not in ("t6_checkpoint folders", "t9_data sets") else None


def _json(data: bytes) -> bytes:
    source = ast.literal_eval(data.decode("utf-8", "surrogatepass"))
    return source if isinstance(source, bytes) else source.encode("utf-8", "surrogatepass")


def _samples(data: bytes, folder: Path) -> None:
    """Records of no bytes are records; as samples they are refused."""
    from boxwright.data.tfrecord_dataset import TFRecordDataset

    (folder / "a.record").write_bytes(data)
    _ = TFRecordDataset([folder / "a.record"], CLASSES)[0]


def augment(data: bytes) -> None:
    from boxwright.families.shared.image_resizer import build_image_resizer
    from boxwright.pipeline.augmentation import build_steps

    steps, resizer, *_ = ast.literal_eval(re.sub(r"<[^>]*>", "None", data.decode()))
    options = parse_message("\n".join(f"data_augmentation_options {{ {step} }}" for step in steps), m.TrainConfig)
    chain = build_steps(options.data_augmentation_options)
    for size in ((1, 1), (1, 9), (9, 1), (5, 7)):
        sample = ShapesDataset(1, size=(20, 20))[0].keep(np.zeros(0, np.int64))
        sample.image, sample.masks = np.zeros((*size, 3), np.uint8), None
        to_input(chain(sample, np.random.default_rng(1)), build_image_resizer(parse_message(resizer, m.ImageResizer)))


@pytest.mark.skipif(
    FOLDER is None, reason="BOXWRIGHT_FUZZ names no folder of inputs; tests named test_hostile.py cover the rules"
)
def test_the_corpus_is_whole() -> None:
    """As many as there were when it was given: 231, of which these are done again here."""
    assert len(CASES) == 231
    tags = Counter(tag_of(path) for path in CASES)
    here = sum(call_of(path, Path()) is not None for path in CASES)
    elsewhere = [path for path in CASES if call_of(path, Path()) is None]
    assert here == 189, (here, Counter(tag_of(path) for path in elsewhere))
    assert {tag_of(path) for path in elsewhere} <= set(ELSEWHERE), "each has a test of its own"
    assert all((Path(__file__).parent.parent.parent / ELSEWHERE[tag_of(path)]).is_file() for path in elsewhere)
    assert len(tags) == 36


HERE = [path for path in CASES if call_of(path, Path()) is not None]
# Inputs that are good, once read as they were meant.
GOOD = ("roundtrip", "names", "augment", "index", "exif", "features", "voc-", "voc crafted")


@pytest.mark.parametrize(
    "path",
    [path if number % 8 == 0 else pytest.param(path, marks=pytest.mark.slow) for number, path in enumerate(HERE)],
    ids=[f"{path.parent.name}/{path.stem}" for path in HERE],
)
def test_no_traceback_hang_or_silent_acceptance(path: Path, tmp_path: Path) -> None:
    call = call_of(path, tmp_path)
    assert call is not None
    small_checkpoint()  # once, and not in each process that a call has of its own
    outcome = guarded(call)
    assert outcome.kind in ("returned", "refused"), outcome.text
    assert len(outcome.text) < 5000
    if not path.name.startswith(GOOD) and "crafted" not in path.name and "trainstep" not in path.name:
        assert outcome.kind == "refused", "accepted without notice"
