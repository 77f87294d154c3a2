"""What ruins runs: planted one at a time, each found and named; and nothing where nothing is wrong."""

from __future__ import annotations

import csv
import io
import json
import shutil
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest import mock
from xml.etree import ElementTree as ET

import numpy as np
import pytest
import torch
from PIL import Image
from typer.testing import CliRunner

import boxwright as bw
from boxwright.base.errors import BoxwrightError
from boxwright.cli.main import app
from boxwright.config.load import parse_message
from boxwright.data.convert import write_voc
from boxwright.data.shapes import ShapesDataset
from boxwright.nn.optimization.schedules import Constant, CosineDecay, ExponentialDecay, ManualSteps
from boxwright.pipeline import messages as m
from boxwright.pipeline.input_reader import build_dataset
from boxwright.pipeline.load import load_config
from boxwright.pipeline.training import ENDLESS, build_training
from boxwright.training import rehearsal
from boxwright.training.preflight import examine as examining
from boxwright.training.preflight.anchors import Coverage, kmeans_by_iou, measure_coverage
from boxwright.training.preflight.examine import Depth, examine
from boxwright.training.preflight.plan import check_schedule
from boxwright.training.preflight.records import Finding, spread
from boxwright.training.rehearsal import DryRunReport
from tests.center_nets import CENTER_NET, SIZE
from tests.conftest import SMALL_MODEL, extra_folder

CLEAN_ANCHORS = "anchor_scale: 2.0 aspect_ratios: [1.0, 1.6, 0.625] scales_per_octave: 3"


class Planted:
    """A folder of data without a fault, and its configuration: for one to be planted."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        model = SMALL_MODEL.replace("num_classes: 4", f"num_classes: {(folder / 'map.pbtxt').read_text().count('id:')}")
        model = model.replace("height: 64 width: 64", "height: 96 width: 128")
        self.text = f"""{model.replace("anchor_scale: 2.0 aspect_ratios: 1.0 scales_per_octave: 2", CLEAN_ANCHORS)}
        train_config {{ batch_size: 4 num_steps: 60 optimizer {{ momentum_optimizer {{ learning_rate {{
          cosine_decay_learning_rate {{ learning_rate_base: 0.1 total_steps: 60 warmup_steps: 6 }} }} }}
          use_moving_average: false }} }}
        train_input_reader {{ label_map_path: "{folder}/map.pbtxt" max_number_of_boxes: 30
          voc_input_reader {{ root: "{folder}/train" image_set: "all" }} }}
        eval_config {{ }}
        eval_input_reader {{ label_map_path: "{folder}/map.pbtxt" voc_input_reader {{ root: "{folder}/val" image_set: "all" }} }}
        """

    def replace(self, old: str, new: str) -> None:
        assert old in self.text
        self.text = self.text.replace(old, new)

    @property
    def config(self) -> Path:
        path = self.folder / "pipeline.config"
        path.write_text(self.text)
        return path

    def annotation(self, number: int, part: str = "train") -> Path:
        return sorted((self.folder / part / "Annotations").glob("*.xml"))[number]

    def image(self, number: int, part: str = "train") -> Path:
        return sorted((self.folder / part / "JPEGImages").iterdir())[number]

    def edit(self, number: int, change: Callable[[ET.Element], None]) -> None:
        path = self.annotation(number)
        tree = ET.parse(path)
        change(tree.getroot())
        tree.write(path)

    def box(self, number: int, **sides: float) -> None:
        """Set sides of the first box of an image."""

        def change(root: ET.Element) -> None:
            found = root.find("object/bndbox")
            assert found is not None
            for name, value in sides.items():
                side = found.find(name)
                assert side is not None
                side.text = str(value)

        self.edit(number, change)

    def found(self, *, readers: int = 0, **depth: int) -> dict[str, list[Finding]]:
        """Return what is found; processes that read are half of the time, and as many as usual in some tests alone."""
        by_check: dict[str, list[Finding]] = {}
        with mock.patch.object(examining, "_READERS", readers):
            for finding in examine(load_config(self.config), depth=Depth(**depth)):
                by_check.setdefault(finding.check, []).append(finding)
        return by_check


@pytest.fixture(scope="module")
def clean(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of data without a fault."""
    folder = tmp_path_factory.mktemp("clean")
    for name, seed in (("train", 5), ("val", 6)):
        shapes = ShapesDataset(24, seed=seed, size=(96, 128))
        with pytest.warns(UserWarning, match="masks are dropped"):
            write_voc(shapes, folder / name)
    (folder / "map.pbtxt").write_text("\n".join(f'item {{ id: {c.id} name: "{c.name}" }}' for c in shapes.categories))
    return folder


@pytest.fixture
def planted(clean: Path, tmp_path: Path) -> Planted:
    shutil.copytree(clean, tmp_path, dirs_exist_ok=True)
    return Planted(tmp_path)


def bad(findings: dict[str, list[Finding]]) -> list[str]:
    return [
        f"{found.verdict} {found.check}"
        for row in findings.values()
        for found in row
        if found.verdict in ("warning", "fatal")
    ]


@pytest.mark.slow
def test_nothing_where_nothing_is_wrong(planted: Planted) -> None:
    found = planted.found(readers=2)
    assert bad(found) == []
    assert set(found) == {
        *("fields", "configuration", "learning_rate", "checkpoint", "readable", "label_map", "num_classes"),
        *("class_balance", "empty_images", "max_number_of_boxes", "boxes", "small_boxes", "anchors", "account"),
        *("duplicates", "leak"),
    }
    assert [row.verdict for row in found["checkpoint"]] == ["note"], "fresh weights"


def of_a_center_net(planted: Planted) -> None:
    resizer = "image_resizer { fixed_shape_resizer { height: 96 width: 128 } }"
    start, end = planted.text.index("model {"), planted.text.index("train_config {")
    planted.text = f"{planted.text[:start]}model {{ {CENTER_NET.replace(SIZE, resizer)} }}\n{planted.text[end:]}"


def test_a_center_net_has_no_anchors_to_judge(planted: Planted) -> None:
    """All other checks are the same; its statistics average over a hundred updates, too many for so few steps."""
    of_a_center_net(planted)
    found = planted.found()
    assert bad(found) == ["warning statistics"]
    assert "anchors" not in found
    assert {"configuration", "learning_rate", "checkpoint", "num_classes", "small_boxes", "leak"} <= set(found)


@pytest.mark.slow  # test_the_command, and the test above
def test_the_command_of_a_center_net(planted: Planted) -> None:
    of_a_center_net(planted)
    result = CliRunner().invoke(app, ["doctor", str(planted.config)])
    assert result.exit_code == 0, result.output
    assert "anchor" not in result.output


def unlisted_class(planted: Planted) -> None:
    def rename(root: ET.Element) -> None:
        name = root.find("object/name")
        assert name is not None
        name.text = "pentagon"

    planted.edit(3, rename)


def turned_box(planted: Planted) -> None:
    planted.box(2, xmin=50, xmax=10)


def outside_box(planted: Planted) -> None:
    planted.box(2, xmin=500, xmax=600)


def empty_box(planted: Planted) -> None:
    planted.box(2, xmin=10, xmax=10)


def doubled_box(planted: Planted) -> None:
    def double(root: ET.Element) -> None:
        first = root.find("object")
        assert first is not None
        root.append(first)

    planted.edit(4, double)


def tiny_box(planted: Planted) -> None:
    planted.box(5, xmin=10, ymin=10, xmax=12, ymax=12)
    planted.replace("height: 96 width: 128", "height: 32 width: 32")


def truncated_image(planted: Planted) -> None:
    data = planted.image(7).read_bytes()
    planted.image(7).write_bytes(data[: len(data) // 3])


def copied_image(planted: Planted) -> None:
    shutil.copy(planted.image(1), planted.image(9))


def recompressed_image(planted: Planted) -> None:
    with Image.open(planted.image(1)) as image:
        image.convert("RGB").resize((100, 80)).save(planted.image(9), "JPEG", quality=60)
    # Its boxes are another picture's: only its looks are asked for here.


def leaked_image(planted: Planted) -> None:
    with Image.open(planted.image(3, "train")) as image:
        image.convert("RGB").save(planted.image(5, "val"), "JPEG", quality=80)


def turned_image(planted: Planted) -> None:
    with Image.open(planted.image(6)) as image:
        exif = Image.Exif()
        exif[0x0112] = 3
        image.convert("RGB").save(planted.image(6), "JPEG", exif=exif)


def test_exchanged_corners_are_read_in_order(planted: Planted) -> None:
    turned_box(planted)
    found = planted.found()
    assert bad(found) == []
    assert "boxes whose corners are exchanged, read in order: 1" in found["assumed"][0].found


def test_a_class_that_the_label_map_lacks_is_named(planted: Planted) -> None:
    unlisted_class(planted)
    assert "pentagon" in planted.found()["account"][0].found


def test_pictures_whose_orientation_nothing_shows_are_counted(planted: Planted) -> None:
    turned_image(planted)
    found = planted.found()
    assert [row.verdict for row in found["assumed"]] == ["note"]
    assert "EXIF orientation" in found["assumed"][0].found
    assert "--ignore_exif" in found["assumed"][0].found


def missing_class(planted: Planted) -> None:
    path = planted.folder / "map.pbtxt"
    path.write_text(f'{path.read_text()}\nitem {{ id: 5 name: "unicorn" }}')
    planted.replace("num_classes: 4", "num_classes: 5")


def too_many_classes(planted: Planted) -> None:
    planted.replace("num_classes: 4", "num_classes: 90")


def too_few_classes(planted: Planted) -> None:
    planted.replace("num_classes: 4", "num_classes: 3")


def too_few_boxes_kept(planted: Planted) -> None:
    planted.replace("max_number_of_boxes: 30", "max_number_of_boxes: 1")


def no_objects(planted: Planted) -> None:
    for path in (planted.folder / "train" / "Annotations").glob("*.xml"):
        tree = ET.parse(path)
        for item in tree.getroot().findall("object"):
            tree.getroot().remove(item)
        tree.write(path)


def tiny_anchors(planted: Planted) -> None:
    planted.replace(CLEAN_ANCHORS, "anchor_scale: 0.3 aspect_ratios: 1.0 scales_per_octave: 1")


def vanishing_rate(planted: Planted) -> None:
    planted.replace(
        "cosine_decay_learning_rate { learning_rate_base: 0.1 total_steps: 60 warmup_steps: 6 }",
        "exponential_decay_learning_rate { initial_learning_rate: 0.1 decay_steps: 1 decay_factor: 0.5 }",
    )


def rate_that_ends_early(planted: Planted) -> None:
    planted.replace("total_steps: 60", "total_steps: 40")


def no_rate(planted: Planted) -> None:
    planted.replace("learning_rate_base: 0.1", "learning_rate_base: 0.0")
    planted.replace("warmup_steps: 6", "warmup_learning_rate: 0.0 warmup_steps: 6")


def no_such_checkpoint(planted: Planted) -> None:
    planted.replace("num_steps: 60", 'num_steps: 60 fine_tune_checkpoint: "no/such/ckpt-0"')


def idle_field(planted: Planted) -> None:
    planted.replace("num_steps: 60", "num_steps: 60 sync_replicas: true")


def unknown_evaluation(planted: Planted) -> None:
    planted.replace(f"{planted.folder}/val", f"{planted.folder}/elsewhere")


def other_evaluation_classes(planted: Planted) -> None:
    text = (planted.folder / "map.pbtxt").read_text()
    (planted.folder / "other.pbtxt").write_text(
        text.replace("id: 1 ", "id: 9 ").replace("id: 2 ", "id: 1 ").replace("id: 9 ", "id: 2 ")
    )
    head, middle, tail = planted.text.partition("eval_input_reader")
    planted.text = head + middle + tail.replace("map.pbtxt", "other.pbtxt")


@pytest.mark.slow_except(
    "tiny_box--",
    "copied_image--",
    "leaked_image--",
    "too_many_classes--",
    "too_few_classes--",
    "other_evaluation_classes--",
)
@pytest.mark.parametrize(
    ("plant", "expected", "words"),
    [
        (unlisted_class, "warning label_map", "not in the label map"),
        (outside_box, "warning boxes", "outside the image"),
        (empty_box, "warning boxes", "no area"),
        (doubled_box, "warning boxes", "twice in one image"),
        (tiny_box, "warning small_boxes", "less than a pixel"),
        (truncated_image, "fatal readable", "1 of 24 samples of training cannot be read"),
        (copied_image, "warning duplicates", "1 pair of images of the training data are the same, 1 to the byte"),
        (recompressed_image, "warning duplicates", "1 pair of images of the training data are the same, 0 to the byte"),
        (leaked_image, "warning leak", "1 pair of images are the same in training and evaluation data"),
        (missing_class, "warning class_balance", "no object of unicorn"),
        (too_many_classes, "warning num_classes", "set num_classes to 4"),
        (too_few_classes, "fatal configuration", "num_classes: 3, but"),
        (too_few_boxes_kept, "warning max_number_of_boxes", "have more than 1 objects"),
        (no_objects, "fatal empty_images", "none of 24 images has an object"),
        (tiny_anchors, "warning anchors", "would reach"),
        (vanishing_rate, "warning learning_rate", "below 1 % of its maximum"),
        (rate_that_ends_early, "warning learning_rate", "0 from step 40 on"),
        (no_rate, "fatal learning_rate", "nothing is learned"),
        (no_such_checkpoint, "fatal checkpoint", "no/such/ckpt-0"),
        (unknown_evaluation, "fatal evaluation", "elsewhere"),
        (other_evaluation_classes, "fatal evaluation", "is this the right label map"),
    ],
    ids=lambda value: getattr(value, "__name__", ""),
)
def test_planted(planted: Planted, plant: Callable[[Planted], None], expected: str, words: str) -> None:
    plant(planted)
    found = planted.found()
    # What follows from the same fault: boxes of the recompressed image lie outside it, tiny images have tiny boxes.
    allowed = {
        "recompressed_image": {"warning boxes", "fatal readable"},
        "no_objects": set(),
        "unlisted_class": {"warning account"},
        "outside_box": {"warning account"},
        "empty_box": {"warning account"},
        "tiny_box": {"warning anchors", "note anchors"},
    }.get(plant.__name__, set())
    assert expected in bad(found), found
    assert set(bad(found)) - allowed == {expected}
    verdict, check = expected.split()
    text = " ".join(str(finding) for finding in found[check] if finding.verdict == verdict)
    assert words in text
    assert all(finding.remedy for row in found.values() for finding in row if finding.verdict != "fine")


def test_a_field_without_effect_is_a_note(planted: Planted) -> None:
    idle_field(planted)
    found = planted.found()
    assert bad(found) == []
    assert "train_config.sync_replicas" in found["fields"][0].found


def test_records_that_name_classes_otherwise(tmp_path: Path, shapes_data: Path) -> None:
    """The texts decide, the numbers say something else."""
    from tests.conftest import small_config_text

    names = {1: "circle", 2: "square", 3: "triangle", 4: "star"}
    own = (shapes_data / "label_map.pbtxt").read_text()
    first, second = (next(n for n in names.values() if n in own), None)
    lines = own.splitlines()
    found = [line.split('"')[1] for line in lines if "name:" in line and "display" not in line]
    assert first in found
    swapped = (
        own.replace(f'"{found[0]}"', '"SWAP"')
        .replace(f'"{found[1]}"', f'"{found[0]}"')
        .replace('"SWAP"', f'"{found[1]}"')
    )
    (tmp_path / "map.pbtxt").write_text(swapped)
    path = tmp_path / "pipeline.config"
    path.write_text(small_config_text(shapes_data).replace(f"{shapes_data}/label_map.pbtxt", f"{tmp_path}/map.pbtxt"))
    result = [f for f in examine(load_config(path)) if f.check == "label_map_texts"]
    assert len(result) == 1
    assert result[0].verdict == "warning"
    assert f"'{found[0]}' has id 2 in the label map and 1 in the records" in result[0].found
    del second


@pytest.mark.slow
def test_suggested_anchors_do_what_they_promise(planted: Planted) -> None:
    tiny_anchors(planted)
    (finding,) = planted.found()["anchors"]
    fragment = finding.remedy.split(" would reach ")[0].removeprefix("anchor_generator { ").removesuffix(" }")
    promised = finding.remedy.split(" would reach ")[1].split("%")[0]
    before = planted.text[planted.text.index("multiscale_anchor_generator") :]
    planted.replace(before[: before.index("}") + 1], fragment)
    (after,) = planted.found()["anchors"]
    assert after.found.startswith(f"{promised}%")
    assert int(promised) > int(finding.found.split("%")[0]) + 30


def test_coverage_by_hand() -> None:
    boxes = np.array([[0, 0, 10, 10], [0, 0, 10, 20], [50, 50, 150, 150]], np.float32)
    anchors = torch.tensor([[0.0, 0, 10, 10], [50, 50, 150, 110]])
    found = measure_coverage({(200, 200): boxes}, lambda size: anchors, 0.5)
    assert found.share == pytest.approx(1.0)
    assert found.mean == pytest.approx((1 + 0.5 + 0.6) / 3)
    found = measure_coverage({(200, 200): boxes}, lambda size: anchors, 0.55)
    assert found.share == pytest.approx(2 / 3)
    assert found.parts == {"small": (0.5, 2), "large": (1.0, 1), "square": (1.0, 2), "tall": (0.0, 1)}
    assert measure_coverage({}, lambda size: anchors, 0.5) == Coverage(1.0, {}, 1.0)


def test_kmeans_by_hand() -> None:
    """Two groups that no cluster may mix; their means are known."""
    sizes = np.array([[10, 10], [12, 10], [14, 10], [100, 50], [120, 50]], np.float64)
    assert kmeans_by_iou(sizes, 2).tolist() == [[12, 10], [110, 50]]
    assert kmeans_by_iou(sizes[:1], 9).tolist() == [[10, 10]]


def test_spread() -> None:
    assert spread(5, 0) == spread(5, 9) == [0, 1, 2, 3, 4]
    assert spread(100, 3) == [0, 49, 99]


@pytest.mark.parametrize(
    ("schedule", "steps", "words"),
    [
        (
            ExponentialDecay(0.004, 800_720, 0.95),
            200_000,
            "it hardly decays: it is 0.004 after 200000 steps",
        ),
        (Constant(0.1), 1000, ""),
        (ExponentialDecay(0.004, 50_000, 0.5), 200_000, ""),
        (
            ExponentialDecay(0.004, 1000, 0.5),
            200_000,
            "for 96% of 200000 steps it is below 1 % of its maximum of 0.004",
        ),
        (ManualSteps((100,), (0.1, 0.0001)), 1000, "for 90% of 1000 steps"),
        (ManualSteps((100,), (0.1, 0.01)), 1000, ""),
        (CosineDecay(0.1, 1000, 0.01, 100), 1000, ""),
        # As DEIM's 2000 steps to warm up, in a short run.
        (CosineDecay(0.1, 1000, 0.0, 900), 1000, "only at step 900 of 1000: for 90% of them the run warms up"),
        (CosineDecay(0.1, 600, 0.0, 500, end_share=1.0), 600, "only at step 500 of 600: for 83% of them"),
        (CosineDecay(0.1, 600, 0.0, 300), 600, ""),
        (CosineDecay(0.1, 2200, 0.0, 2000), 600, "the warm-up is longer than the training"),
    ],
)
def test_rates(schedule: Any, steps: int, words: str) -> None:
    (found,) = check_schedule(schedule, steps)
    assert (found.verdict == "fine") == (not words), found
    assert words in found.found


@pytest.mark.slow
def test_strangers_rates() -> None:
    """TF's own decay of RMSProp (800,720 steps) comes after the end of the runs of nearly all who kept it."""
    folder = extra_folder("BOXWRIGHT_USER_CONFIGS")
    if folder is None:
        pytest.skip("BOXWRIGHT_USER_CONFIGS names no folder of pipeline.config files")
    named: Counter[str] = Counter()
    longer = 0
    for path in sorted(folder.rglob("*.config")):
        try:
            config = load_config(path)
            plan = build_training(config)
        except BoxwrightError:  # other tests hold these; one names a label map of keypoints that is not here
            continue
        if plan.num_steps == ENDLESS:
            continue
        schedule = plan.optimizer.schedule
        longer += isinstance(schedule, ExponentialDecay) and schedule.decay_steps >= plan.num_steps
        (found,) = check_schedule(schedule, plan.num_steps)
        named[f"{type(schedule).__name__} {found.verdict}"] += 1
    assert named == {
        "ExponentialDecay warning": 41,
        "ManualSteps warning": 27,
        "ManualSteps fine": 4,
        "CosineDecay warning": 11,
        "CosineDecay fine": 54,
    }
    assert longer == 41


def voc(folder: Path, images: Path, annotations: Path, lists: dict[str, list[str]]) -> Path:
    """Lay out a VOC folder of links."""
    (folder / "ImageSets" / "Main").mkdir(parents=True)
    (folder / "JPEGImages").symlink_to(images)
    (folder / "Annotations").symlink_to(annotations)
    for name, stems in lists.items():
        (folder / "ImageSets" / "Main" / f"{name}.txt").write_text("\n".join(stems) + "\n")
    return folder


def of_two_lists(planted: Planted, root: Path, names: list[str], train: str, test: str) -> dict[str, list[Finding]]:
    (planted.folder / "map.pbtxt").write_text(
        "\n".join(f'item {{ id: {number} name: "{name}" }}' for number, name in enumerate(names, 1))
    )
    planted.replace("num_classes: 4", f"num_classes: {len(names)}")
    planted.replace(f'{planted.folder}/train" image_set: "all"', f'{root}" image_set: "{train}"')
    planted.replace(f'{planted.folder}/val" image_set: "all"', f'{root}" image_set: "{test}"')
    return planted.found()


def real(name: str) -> Path:
    folder = extra_folder("BOXWRIGHT_DATA")
    if folder is None or not (folder / name).is_dir():
        pytest.skip(f"BOXWRIGHT_DATA names no folder that holds {name}")
    return folder / name


def raccoon_lists(data: Path) -> dict[str, list[str]]:
    lists = {}
    for part in ("train", "test"):
        with (data / "data" / f"{part}_labels.csv").open(newline="") as file:
            lists[part] = sorted({Path(row["filename"]).stem for row in csv.DictReader(file)})
    return lists


@pytest.mark.slow  # test_a_planted_leak_of_raccoons reads the same images
def test_raccoons(planted: Planted, tmp_path: Path) -> None:
    data = real("raccoon")
    lists = raccoon_lists(data)
    root = voc(tmp_path / "voc", data / "images", data / "annotations", lists)
    found = of_two_lists(planted, root, ["raccoon"], "train", "test")
    (doubles,) = found["duplicates"]
    pairs = [("11", "116"), ("52", "74"), ("65", "98"), ("83", "120")]
    for first, second in pairs:
        names = {f"raccoon-{first}.jpg = raccoon-{second}.jpg", f"raccoon-{second}.jpg = raccoon-{first}.jpg"}
        assert any(name in doubles.found for name in names), (first, second)
    assert "8 pairs" in doubles.found
    assert [finding.verdict for finding in found["leak"]] == ["fine"], "the two lists share no image"


@pytest.mark.slow
def test_a_planted_leak_of_raccoons(planted: Planted, tmp_path: Path) -> None:
    data = real("raccoon")
    lists = raccoon_lists(data)
    lists["test"].append(lists["train"][7])
    root = voc(tmp_path / "voc", data / "images", data / "annotations", lists)
    (leak,) = of_two_lists(planted, root, ["raccoon"], "train", "test")["leak"]
    assert leak.verdict == "warning"
    assert lists["train"][7] in leak.found


@pytest.mark.slow  # test_a_planted_leak_of_raccoons, and planted boxes above
def test_blood_cells(planted: Planted) -> None:
    found = of_two_lists(planted, real("bccd"), ["Platelets", "RBC", "WBC"], "trainval", "test")
    assert "2 of 3943 boxes: no area (BloodImage_00338, BloodImage_00343)" in found["boxes"][0].found
    assert "BloodImage_00037.jpg ≈ BloodImage_00038.jpg" in found["duplicates"][0].found
    assert found["leak"][0].verdict == "fine"


def run(*arguments: object) -> Any:
    return CliRunner().invoke(app, [str(argument) for argument in arguments])


def test_the_command(planted: Planted) -> None:
    """All but the trial steps, of which tests/training/test_rehearsal.py is."""
    tried = DryRunReport("CPU", (1, 2), (2**30, 2**30 + 2**20), (0.5, 1.0), 2.0**34, 0.01)
    with mock.patch.object(rehearsal, "rehearse", return_value=tried):
        said_by_the_command(planted)


@pytest.mark.slow  # the test above, and tests/training/autoconfig/test_start.py trains with a batch that was tried
def test_the_command_tries_steps(planted: Planted) -> None:
    said_by_the_command(planted)


def said_by_the_command(planted: Planted) -> None:
    result = run("doctor", planted.config, "--json")
    assert result.exit_code == 0, result.output
    rows = json.loads(result.stdout)
    by_check = {row["check"]: row for row in rows}
    assert {"memory", "input_speed"} <= set(by_check)
    assert by_check["memory"]["verdict"] == "fine"
    assert "GiB" in by_check["memory"]["found"]
    assert "images/s" in by_check["input_speed"]["found"]
    assert all(row["verdict"] in ("fine", "note", "warning") for row in rows)


def test_the_table_and_the_status(planted: Planted) -> None:
    no_objects(planted)
    result = run("doctor", planted.config, "--no_steps")
    assert result.exit_code == 1
    assert "none of 24 images has an object" in " ".join(result.output.split())
    assert "1 fatal" in result.output


def test_a_configuration_that_cannot_be_built(planted: Planted) -> None:
    planted.replace('type: "ssd_mobilenet_v2_fpn_keras"', 'type: "ssd_mobilenet_v9"')
    result = run("doctor", planted.config, "--json")
    assert result.exit_code == 1
    rows = json.loads(result.stdout)
    assert [row["check"] for row in rows] == ["fields", "configuration"]
    assert "ssd_mobilenet_v9" in rows[0]["found"]


@pytest.mark.slow
def test_looking_at_anchors_leaves_the_network_as_it_is(shapes_data: Path) -> None:
    """On another device than the boxes: `meta` stands for a GPU, as nothing on it can be compared with what is not."""
    from boxwright.nn.anchor_layer import AnchorLayer
    from boxwright.training.preflight.anchors import InputFrame, check_anchors
    from boxwright.training.preflight.records import read_records
    from tests.conftest import SMALL_MODEL, small_config_text

    config = parse_message(small_config_text(shapes_data), m.TrainEvalPipelineConfig)
    assert config.train_input_reader is not None
    assert config.model is not None
    assert config.model.ssd is not None
    assert config.model.ssd.anchor_generator is not None
    dataset = build_dataset(config.train_input_reader, "train_input_reader")
    records, _ = read_records(dataset, range(12), workers=0)
    for resizer in ("fixed_shape_resizer { height: 64 width: 64 }", "keep_aspect_ratio_resizer { min_dimension: 48 }"):
        text = SMALL_MODEL.replace("fixed_shape_resizer { height: 64 width: 64 }", resizer)
        said = []
        for device in ("cpu", "meta"):
            detector = bw.build_detector(parse_message(text, m.TrainEvalPipelineConfig), dataset.categories).to(device)
            (layer,) = (one for one in detector.modules() if isinstance(one, AnchorLayer))
            before = {name: (one.device, one.shape, id(one)) for name, one in detector.named_buffers()}
            laid, sizes = layer.laid_for, layer.level_sizes
            said.append(
                list(check_anchors(detector, config.model.ssd.anchor_generator, records, InputFrame(detector), 0.5))
            )
            assert {name: (one.device, one.shape, id(one)) for name, one in detector.named_buffers()} == before
            assert (layer.laid_for, layer.level_sizes) == (laid, sizes)
        assert said[0] == said[1]
        assert len(said[0]) == 1


def test_anchors_are_laid_where_their_buffer_is() -> None:
    from tests.conftest import SMALL_MODEL

    detector = bw.build_detector(parse_message(SMALL_MODEL, m.TrainEvalPipelineConfig)).to("meta")
    detector.network.lay_anchors((96, 96))
    anchors = {name: one for name, one in detector.named_buffers() if name.endswith("anchors")}
    assert [(one.device.type, one.shape[1]) for one in anchors.values()] == [("meta", 4)]
    assert next(iter(anchors.values())).shape[0] > 100


@pytest.mark.slow
def test_a_batch_that_does_not_fit(planted: Planted) -> None:
    planted.replace("batch_size: 4", "batch_size: 1000000")
    planted.replace("height: 96 width: 128", "height: 512 width: 512")
    rows = {row["check"]: row for row in json.loads(run("doctor", planted.config, "--json").stdout)}
    assert rows["memory"]["verdict"] == "fatal"
    assert "predicted from batches of 1 and 2" in rows["memory"]["found"]
    if not torch.cuda.is_available():
        assert rows["memory"]["found"].endswith(
            "GiB on the CPU (predicted from batches of 1 and 2); nothing was tried on a GPU"
        )
    assert "gradient_accumulation_steps" in rows["memory"]["remedy"]


@pytest.mark.slow
def test_train_says_it_too(planted: Planted, tmp_path: Path) -> None:
    too_few_boxes_kept(planted)
    planted.replace("num_steps: 60", "num_steps: 1")
    planted.replace("total_steps: 60 warmup_steps: 6", "total_steps: 1 warmup_steps: 0")
    said = run("train", "--config", planted.config, "--model_dir", tmp_path / "run", "--workers", 0, "--no_evaluate")
    assert said.exit_code == 0, said.output
    assert "warning: max_number_of_boxes: " in " ".join(said.output.split())
    silent = run(
        "train",
        "--config",
        planted.config,
        "--model_dir",
        tmp_path / "other",
        "--workers",
        0,
        "--no_evaluate",
        "--no_preflight",
    )
    assert "warning: max_number_of_boxes: " not in " ".join(silent.output.split())
    looked, not_looked = (
        torch.load(tmp_path / name / "ckpt-1.pt", weights_only=True)["network"] for name in ("run", "other")
    )
    assert all(torch.equal(value, not_looked[name]) for name, value in looked.items()), "looking changes nothing"


def test_bytes_that_are_no_image_do_not_end_it(planted: Planted) -> None:
    planted.image(2).write_bytes(b"\x89PNG\r\n\x1a\n" + bytes(50))
    planted.image(4).write_bytes(b"")
    buffer = io.BytesIO()
    Image.new("RGB", (1, 1)).save(buffer, "JPEG")
    planted.image(5).write_bytes(buffer.getvalue())
    found = planted.found()
    assert "2 of 24 samples of training cannot be read" in found["readable"][0].found


def test_the_head_of_a_checkpoint(planted: Planted, tmp_path: Path) -> None:
    planted.replace("num_steps: 60", "num_steps: 1")
    planted.replace("total_steps: 60 warmup_steps: 6", "total_steps: 1 warmup_steps: 0")
    run("train", "--config", planted.config, "--model_dir", tmp_path / "run", "--workers", 0, "--no_evaluate")
    missing_class(planted)
    for kind, verdict, words in (
        ("full", "fatal", "for another number of classes"),
        ("detection", "fine", "keep their initial values"),
    ):
        text = planted.text
        planted.replace("num_steps: 1", f'num_steps: 1 fine_tune_checkpoint_type: "{kind}"')
        rows = json.loads(
            run("doctor", planted.config, "--checkpoint", tmp_path / "run", "--no_steps", "--json").stdout
        )
        (row,) = [row for row in rows if row["check"] == "checkpoint"]
        assert row["verdict"] == verdict, row
        assert words in row["found"] + row["remedy"], row
        planted.text = text


@pytest.mark.slow
def test_boxes_of_almost_nothing_get_anchors_too(planted: Planted) -> None:
    """A sliver's scale and ratio round to nothing, which no generator takes."""
    tiny_anchors(planted)
    for number in range(24):
        planted.box(number, xmin=10, ymin=1, xmax=10.001, ymax=90)
    (finding,) = planted.found()["anchors"]
    assert finding.remedy


@pytest.mark.slow
def test_images_of_sixteen_bits_differ(planted: Planted) -> None:
    for number in range(3):
        values = np.random.default_rng(number).integers(1000, 60000, (12, 16)).astype(np.uint16)
        large = np.kron(values, np.ones((8, 8), np.uint16))
        path = planted.image(number)
        Image.fromarray(large).save(path, "PNG")
    assert [finding.verdict for finding in planted.found()["duplicates"]] == ["fine"]


@pytest.mark.slow
def test_files_that_are_only_compared_are_named_too(planted: Planted) -> None:
    planted.image(2).write_bytes(b"")
    found = planted.found(decoded=2)
    assert "1 of 24 samples of training cannot be read" in found["readable"][0].found


def test_very_many_equal_images_are_counted_not_listed() -> None:
    from boxwright.training.preflight.images import Fingerprints, check_duplicates

    count = 1500
    hashes = {name: np.zeros((count, 32), np.uint8) for name in ("dhash", "phash")}
    prints = Fingerprints(tuple(f"i{n}" for n in range(count)), (b"a",) * count, hashes, (), ())
    (finding,) = check_duplicates(prints, "the data")
    pairs = count * (count - 1) // 2
    assert f"{pairs} pairs of images of the data are the same, {pairs} to the byte: i0 = i1, " in finding.found
    assert finding.found.endswith(f" and {pairs - 20} more")
