"""What a newcomer's first training is worth: the default command, its recipe's alternatives, and its statistics' start.

    BOXWRIGHT_DATA=folder-that-holds-bccd-and-raccoon python benchmarks/first_training.py budgets
        [--data bccd bccd-50 raccoon shapes …] [--minutes 2 6 20] [--seeds 0 1 2] [--weights FILE] [--set FIELD=VALUE …]
    … python benchmarks/first_training.py variants [NAME …] [--minutes 2]
    … python benchmarks/first_training.py statistics [NAME …] [--backbone efficientnet_lite0.pth]

`budgets` types `boxwright train DATA --minutes M --seed S` as a newcomer would, in a folder of its own, and judges the
last checkpoint on the held-out images, at most 300. `--steps_a_minute`, what `boxwright init --minutes` counts on a
machine that does nothing else, gives runs as many steps (by `--epochs`) whatever else the machine does meanwhile.
`variants` changes one thing at a time in the default preset and trains for so many steps as the minutes allow by the
processor time of a step, from decoded images in memory. `statistics` trains once and judges twice: with what moving
statistics began with, and without it.

Each row goes to `results/first-training-….json` as soon as it is there; a row that is there is not made again, so that
an interrupted command goes on. `figures.py` writes the tables of docs/small_data.md, and `first_training.py plot` its
picture.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import boxwright as bw
from boxwright.base.quiet import quiet
from boxwright.pipeline import messages as m
from boxwright.pipeline.input_reader import build_dataset
from boxwright.training.autoconfig.choices import InitSettings
from boxwright.training.autoconfig.start import init_config
from boxwright.types import Array, Detections

HERE = Path(__file__).parent
sys.path[:0] = [str(HERE)]
from first_training_data import DATA  # noqa: E402  # a script beside this one
from small_data import about, judge, read  # noqa: E402
from small_data_models import Samples  # noqa: E402

RESULTS = HERE / "results"
DEFAULT = "preset:ssd_hgnetv2_fpn_small"
OLD = "preset:ssd_mobilenet_v2_fpn_small"
_WARM_UPS, _ROUNDS = 2, 5
_MOST_JUDGED = 300
_BATCH = 8  # what `init` chooses on a CPU
Row = dict[str, Any]


@dataclass(frozen=True)
class Variant:
    """A recipe that is compared with the default's.

    Attributes:
        overrides: Changes of the configuration.
    """

    overrides: tuple[str, ...] = ()
    preset: str = DEFAULT
    size: tuple[int, int] = (240, 320)


_RATE = "train_config.optimizer.adam_optimizer.learning_rate.cosine_decay_learning_rate.learning_rate_base"
_EXTRACTOR, _HEAD = (
    "model.ssd.feature_extractor",
    "model.ssd.box_predictor.weight_shared_convolutional_box_predictor",
)
_SEPARABLE = (f"{_EXTRACTOR}.use_depthwise=true", f"{_HEAD}.use_depthwise=true")
VARIANTS = {
    "the default": Variant(),
    "MobileNetV2 ×0.5, the default before, batch 16": Variant(("train_config.batch_size=16",), OLD),
    "ResNet-10t": Variant((f"{_EXTRACTOR}.type=timm/resnet10t",)),
    "separable neck and head": Variant(_SEPARABLE),
    "GIoU": Variant(("model.ssd.loss.localization_loss={weighted_giou { }}",)),
    "batch 4": Variant(("train_config.batch_size=4",)),
    "batch 16": Variant(("train_config.batch_size=16",)),
    "input 192×256": Variant(size=(192, 256)),
    "input 288×384": Variant(size=(288, 384)),
    "rate × 1.5": Variant((f"{_RATE}=0.006",)),
    "mosaics": Variant(
        ("train_config { data_augmentation_options { random_mosaic { probability: 0.5 height: 240 width: 320 } } }",)
    ),
}


def config_of(variant: Variant, steps: int, folder: Path) -> m.TrainEvalPipelineConfig:
    """Return a configuration for BCCD's classes, with the augmentation that `init` chooses."""
    height, width = variant.size
    path = folder / "variant.config"
    path.write_text(
        f'preset: "{variant.preset.removeprefix("preset:")}" num_classes: 3\n'
        f"model {{ ssd {{ image_resizer {{ fixed_shape_resizer {{ height: {height} width: {width} }} }} }} }}\n"
        f"train_config {{ num_steps: {steps}\n"
        "  data_augmentation_options { random_horizontal_flip { } }\n"
        "  data_augmentation_options { random_crop_image { min_object_covered: 0 min_aspect_ratio: 1\n"
        "    max_aspect_ratio: 1.8 min_area: 0.5 max_area: 1 overlap_thresh: 0.4 random_coef: 0.4 } }\n"
        "  data_augmentation_options { random_adjust_brightness { max_delta: 0.12 } }\n"
        "  data_augmentation_options { random_adjust_contrast { min_delta: 0.8 max_delta: 1.25 } } }\n"
    )
    return bw.load_config(path, variant.overrides)


def trained(config: m.TrainEvalPipelineConfig, data: Samples, seed: int, folder: Path) -> Path:
    """Train in this process, without workers; return the last checkpoint."""
    settings = bw.RunSettings(
        workers=0, device="cpu", seed=seed, preflight=False, evaluate=False, summarize_every_n=0, log_every_n=10**6
    )
    run = bw.train(config, folder, settings, listeners=[], dataset=data)
    refuse_interrupted(run.step, config)
    return folder / f"ckpt-{run.step}.pt"


def refuse_interrupted(step: int, config: m.TrainEvalPipelineConfig) -> None:
    """Raise SystemExit for a run that ended before its last step, as training does when it is asked to stop."""
    wanted = config.train_config.num_steps if config.train_config is not None else None
    if step != wanted:
        raise SystemExit(f"the run ended at step {step} of {wanted}: not recorded")


def seconds_of_a_step(config: m.TrainEvalPipelineConfig, data: Samples) -> float:
    """Return the processor time of a step over the number of threads, which other programs hardly change."""
    learner = bw.Learner(config, dataset=data, device="cpu")
    batches, took = learner.batches(), []
    for _ in range(_WARM_UPS + _ROUNDS):
        began = time.process_time()
        learner.step(next(batches))
        took.append(time.process_time() - began)
    return statistics.median(took[_WARM_UPS:]) / _threads()


def _threads() -> int:
    import torch

    return torch.get_num_threads()


def found_by(detector: bw.Detector, data: Samples) -> list[Detections[Array]]:
    """Return what a detector finds in each image."""
    return [detector.detect([sample.image])[0].arrays() for sample in data.samples]


def variants(names: Sequence[str], minutes: float, seed: int, root: Path) -> Iterator[Row]:
    """Yield a row for each variant that has none yet."""
    train, test = read("bccd", root)
    for name in names:
        key = {"variant": name, "minutes": minutes, "seed": seed}
        if known("variants", key):
            continue
        with tempfile.TemporaryDirectory() as work:
            folder = Path(work)
            second = seconds_of_a_step(config_of(VARIANTS[name], 100, folder), train)
            steps = int(60 * minutes / second)
            with quiet():
                checkpoint = trained(config_of(VARIANTS[name], steps, folder), train, seed, folder / "run")
            detector = bw.restore_detector(checkpoint)[0]
            yield {**key, "steps": steps, "ms a step": round(1000 * second), **judge(found_by(detector, test), test)}


# Of the head of the page: name → preset, steps, rate and whether the backbone comes with weights.
STATISTICS = {
    "MobileNetV2, 110 steps": (110, 0.003, False),
    "MobileNetV2, 177 steps": (177, 0.003, False),
    "MobileNetV2, 365 steps": (365, 0.003, False),
    "EfficientNet-Lite0, fresh, 200 steps": (200, 0.003, False),
    "EfficientNet-Lite0, pretrained, 200 steps, rate 0.001": (200, 0.001, True),
    "EfficientNet-Lite0, pretrained, 200 steps": (200, 0.003, True),
}


def statistics_rows(names: Sequence[str], backbone: str, root: Path) -> Iterator[Row]:
    """Yield a row for each training: judged with what its statistics began with, and without."""
    train, test = read("bccd", root)
    for name in names:
        steps, rate, pretrained = STATISTICS[name]
        if known("statistics", {"training": name}) or (pretrained and not backbone):
            continue
        lite = (f"{_EXTRACTOR}.type=timm/tf_efficientnet_lite0", f"{_EXTRACTOR}.depth_multiplier=1")
        overrides = (
            "train_config.batch_size=16",
            f"{_RATE}={rate}",
            *(lite if "Lite0" in name else ()),
            *((f"train_config.fine_tune_checkpoint='{backbone}'",) if pretrained else ()),
            *(("train_config.fine_tune_checkpoint_type=transfer",) if pretrained else ()),
        )
        with tempfile.TemporaryDirectory() as work:
            folder = Path(work)
            config = config_of(Variant(overrides, OLD, (288, 384)), steps, folder)
            with quiet():
                checkpoint = trained(config, train, 0, folder / "run")
            row: Row = {"training": name, "steps": steps}
            for what, value in (("as it is", False), ("start taken out", True)):
                config.train_config.debias_batch_norm = value  # type: ignore[union-attr]  # it has one
                detector = bw.restore_detector(checkpoint, config=config)[0]
                row[what] = judge(found_by(detector, test), test)
            yield row


def budgets(given: argparse.Namespace, root: Path) -> Iterator[Row]:
    """Yield a row for each run of the default command that has none yet."""
    for data in given.data:
        recipe = {"data": data, "weights": Path(given.weights).name, "set": " ".join(given.set)}
        keys = [{**recipe, "minutes": minutes, "seed": seed} for minutes in given.minutes for seed in given.seeds]
        missing = [key for key in keys if not known("budgets", key)]
        with tempfile.TemporaryDirectory() as work:
            if not missing:
                continue
            folder = DATA[data].prepare(root, Path(work))
            images = _images(folder) if given.steps_a_minute else 0
            for key in missing:
                yield {**key, **run_of_budget(folder, images, key, given)}


def run_of_budget(data: Path, images: int, key: Row, given: argparse.Namespace) -> Row:
    """Run the default command on a folder of so many images to learn from, and judge what it trained."""
    length = ("--minutes", f"{key['minutes']:g}")
    if given.steps_a_minute:
        # Half a step less, so that rounding up gives this many.
        length = ("--epochs", repr((int(given.steps_a_minute * key["minutes"]) - 0.5) * _BATCH / images))
    with tempfile.TemporaryDirectory() as work:
        command = [
            *(sys.executable, "-m", "boxwright", "train", str(data), *length),
            *("--weights", given.weights, "--seed", str(key["seed"]), "--model_dir", f"{work}/model"),
            *(word for override in given.set for word in ("--set", override)),
        ]
        began = time.monotonic()
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL, cwd=work)
        took = time.monotonic() - began
        detector, config, steps = bw.restore_detector(f"{work}/model")
        refuse_interrupted(steps, config)
        test = _held_out(config)
        timed = {"steps a minute": given.steps_a_minute} if given.steps_a_minute else {}
        return {"steps": steps, "seconds of the command": round(took), **timed, **judge(found_by(detector, test), test)}


def _images(data: Path) -> int:
    """Return how many images `init` leaves to learn from."""
    with tempfile.TemporaryDirectory() as folder:
        started = init_config(data, f"{folder}/init.config", InitSettings(steps=False))
        config = bw.load_config(started.config)
        return len(build_dataset(config.train_input_reader, "train_input_reader"))


def _held_out(config: m.TrainEvalPipelineConfig) -> Samples:
    """Return the held-out images of a run's own split, at most 300."""
    dataset = build_dataset(config.eval_input_reader[0], "eval_input_reader")
    numbers = range(min(len(dataset), _MOST_JUDGED))
    return Samples("held out", dataset.categories, [dataset[number] for number in numbers])


def _path(kind: str) -> Path:
    return RESULTS / f"first-training-{kind}-cpu.json"


def rows_of(kind: str) -> list[Row]:
    """Return the rows that are there."""
    path = _path(kind)
    rows: list[Row] = json.loads(path.read_text())["rows"] if path.is_file() else []
    return rows


def known(kind: str, key: Row) -> bool:
    """Return whether a row is there."""
    return any(all(row.get(name) == value for name, value in key.items()) for row in rows_of(kind))


def keep(kind: str, row: Row) -> None:
    """Write a row beside those that are there."""
    rows = [*rows_of(kind), {**row, **about("first_training.py")}]
    _path(kind).write_text(json.dumps({"rows": rows}, indent=1) + "\n")
    print(json.dumps(row), flush=True)


def plot(path: Path) -> None:
    """Draw average precision over minutes, a dot a seed."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(6, 3.2), layout="constrained")
    axes = figure.subplots()
    for data, kind in DATA.items():
        rows = [row for row in rows_of("budgets") if row["data"] == data and row["weights"] == "none"]
        if not rows:
            continue
        minutes = sorted({row["minutes"] for row in rows})
        medians = [statistics.median(row["AP"] for row in rows if row["minutes"] == one) for one in minutes]
        (line,) = axes.plot(minutes, medians, marker="o", label=kind.title)
        axes.scatter([row["minutes"] for row in rows], [row["AP"] for row in rows], s=8, color=line.get_color())
    axes.set(xlabel="minutes of training, two cores", ylabel="AP", ylim=(0, None), xlim=(0, None))
    axes.grid(alpha=0.3)
    axes.legend()
    figure.savefig(path)


def main() -> None:
    """Make the rows that are missing."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("kind", choices=["budgets", "variants", "statistics", "plot"])
    parser.add_argument("names", nargs="*", help="variants or trainings; default: all")
    parser.add_argument("--data", nargs="+", default=["bccd", "raccoon"], choices=list(DATA))
    parser.add_argument("--minutes", nargs="+", type=float, default=[2.0, 6.0, 20.0])
    parser.add_argument("--seeds", nargs="+", type=int, default=[0, 1, 2])
    parser.add_argument("--weights", default="none")
    parser.add_argument("--set", action="append", default=[], help="as boxwright train's")
    parser.add_argument("--backbone", default="", help="the file of EfficientNet-Lite0's weights")
    parser.add_argument("--steps_a_minute", type=float, default=0, help="in place of timing steps when a run begins")
    given = parser.parse_args()
    if given.kind == "plot":
        plot(HERE.parent / "docs" / "first_training.svg")
        return
    root = Path(os.environ["BOXWRIGHT_DATA"])
    if given.kind == "budgets":
        rows = budgets(given, root)
    elif given.kind == "variants":
        rows = variants(given.names or list(VARIANTS), given.minutes[0], given.seeds[0], root)
    else:
        rows = statistics_rows(given.names or list(STATISTICS), given.backbone, root)
    for row in rows:
        keep(given.kind, row)


if __name__ == "__main__":
    main()
