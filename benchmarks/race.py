"""Race TensorFlow's own graphs of the Object Detection API: our time over TensorFlow's, of a step and a detection.

    make race                        or, once it has made TensorFlow's environment, some of it:
    python benchmarks/race.py --tf-python .venv-race/bin/python [--models ssd_mobilenet_v2_320x320 …] [--ways torch …]
        [--modes train detect] [--busy 0 1 3] [--cpu default avx2] [--rounds 7] [--json FILE]

The folder BOXWRIGHT_TF_RACE holds the graphs as SavedModels and `race.py`, which times both sides in interleaved rounds
with the same weights and images; the losses, or best scores, that it prints must agree. Ours are PyTorch, steps of a
compiled network, and detections of exported files in ONNX Runtime and OpenVINO. Threads are those of a `boxwright`
command that starts then; `--busy` adds processes that compute beside both, so many for each core. Rows are kept by
processor, whose instructions decide more than code, and written one by one: a race that is cut off keeps them.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import platform
import sys
import tempfile
import unittest.mock
from collections.abc import Callable, Iterator
from importlib.machinery import SourceFileLoader
from pathlib import Path
from typing import Any, Literal

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE)]
from threads import busy  # noqa: E402  # a script beside this one

GIVEN = dict(os.environ)
RESULTS = HERE / "results" / "race-cpu.json"
VARIABLE = "BOXWRIGHT_TF_RACE"
# Our ways to compute, and what each is for.
WAYS = {
    "torch": ("train", "detect"),
    "compiled": ("train",),
    "onnxruntime": ("detect",),
    "openvino": ("detect",),
}
FORMATS: dict[str, tuple[Literal["onnx", "openvino"], str]] = {
    "onnxruntime": ("onnx", "onnx"),
    "openvino": ("openvino", "xml"),
}
NAMES = {
    "ssd_mobilenet_v2_320x320": "SSD MobileNetV2 300",
    "ssd_mobilenet_v2_fpnlite_320x320": "FPNLite 320",
    "ssd_resnet50_v1_fpn_640x640": "ResNet-50 FPN 640",
    "ssd_efficientdet_d0_512x512": "EfficientDet-D0 512",
    "faster_rcnn_resnet50_v1_640x640": "Faster R-CNN ResNet-50 640",
}
_RATE = "train_config.optimizer.momentum_optimizer.learning_rate={{ constant_learning_rate {{ learning_rate: {} }} }}"
Row = dict[str, Any]


class Ours:
    """Our side, in the process that `race.py` starts: steps by `boxwright.Learner`, detections as `predict` makes."""

    run: Callable[[], Any]

    def __init__(self, told: Row, folder: Path) -> None:
        """Build what is timed, with fresh weights.

        Args:
            told: The race's settings.
            folder: Of the graph, with the configuration that it was exported from.
        """
        import boxwright as bw

        self.told = told
        self.about = json.loads((folder / "model.json").read_text())
        changes = [
            "train_config.use_bfloat16=false",
            "train_config.fine_tune_checkpoint=",
            "train_input_reader={ external_input_reader { } }",
            f"train_config.batch_size={told['batch']}",
            _RATE.format(told["rate"]),
        ]
        self.config = bw.load_config(folder / "pipeline.config", changes)
        if self.config.train_config is not None:
            self.config.train_config.data_augmentation_options.clear()
        self.build(None)

    def build(self, weights: Row | None) -> None:
        """Build with weights by the names of their checkpoint."""
        import boxwright as bw
        from boxwright.runtime.allocator import keep_freed_memory

        if self.told["mode"] == "train":
            keep_freed_memory()  # as `train` does
            learner = bw.Learner(
                self.config, dataset=Scene(self.told, self.about), device="cpu", seed=self.told["seed"]
            )
            if weights is not None:
                bw.load_weights(learner.detector, weights)
            if self.told["way"] == "compiled":
                learner.detector.network.compile()
            batch = next(learner.batches())
            self.run = lambda: learner.step(batch)
            return
        detector = bw.build_detector(self.config)
        if weights is not None:
            bw.load_weights(detector, weights)
        images, _, _ = tf_race().scene(self.told["batch"], *self.told["image_size"], self.told["seed"])
        # Fresh weights detect nothing, which an export does not accept.
        exported = weights is not None and self.told["way"] in FORMATS
        opened = export(bw, detector, images, self.told["way"]) if exported else detector.optimize()
        self.run = lambda: opened.detect(list(images))

    def weights(self, path: str) -> None:
        """Start again, with TensorFlow's weights."""
        import numpy as np

        with np.load(path) as file:
            self.build({name: file[name] for name in file.files})

    def say(self, result: Any) -> Row:
        """Return what must agree: losses, or the best scores."""
        if self.told["mode"] == "train":
            return {name.split("/")[-1]: float(value) for name, value in result.losses.items()}
        return {"found": len(result[0].boxes), "scores": [float(score) for score in result[0].scores[:5]]}

    def version(self) -> str:
        """Return what computes."""
        import torch

        return f"torch {torch.__version__}, {self.told['way']}"


def export(bw: Any, detector: Any, images: Any, way: str) -> Any:
    """Return the detector as an opened file."""
    kind, suffix = FORMATS[way]
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / f"detector.{suffix}"
        # Made-up weights' scores are below what the comparison asks for; those that the race prints must agree.
        bw.export(detector, file, images=list(images), format=kind, allow_difference=True)
        return bw.load(file).opened


class Scene:
    """TensorFlow's batch as a data set."""

    def __init__(self, told: Row, about: Row) -> None:
        """Make the pictures and objects, at the size of the network's input."""
        import numpy as np

        import boxwright as bw

        height, width = about["input"]
        images, boxes, labels = tf_race().scene(told["batch"], height, width, told["seed"])
        corners = boxes[..., [1, 0, 3, 2]] * np.array([width, height, width, height], np.float32)
        self.samples = [bw.Sample(*arrays) for arrays in zip(images, corners, labels.astype(np.int64), strict=True)]
        self.categories = bw.Categories(tuple(bw.Category(n, n + 1, f"class {n}") for n in range(90)))

    def __len__(self) -> int:
        return len(self.samples)

    def __getitem__(self, index: int) -> Any:
        return self.samples[index]


def tf_race() -> Any:
    """Return the module `race.py` of TensorFlow's graphs."""
    folder = os.environ.get(VARIABLE)
    if not folder or not (Path(folder) / "race.py").is_file():
        sys.exit(f"{VARIABLE} must name the folder of TensorFlow's graphs and race.py: it is {folder or 'not set'}")
    return SourceFileLoader("tf_race", str(Path(folder) / "race.py")).load_module()


def raced(race: Any, model: str, mode: str, batch: int, way: str, arguments: argparse.Namespace) -> Row:
    """Return a row of TensorFlow's `race.py`, with ours as our side."""
    plain, theirs = race.Side, race.__file__

    def side(python: str, told: Row, log: Any) -> Any:
        race.__file__ = theirs if told["side"] == "tf" else __file__  # what the side's process runs
        return plain(python, told | {"way": way}, log)

    settings = {"seed": 1, "rate": 1e-3, "threads": 0, "image_size": [480, 640], "plain": False, "room": 100}
    settings |= {"fresh": False, "times": 2, "rounds": arguments.rounds, "cache": arguments.cache}
    settings |= {"tf_python": arguments.tf_python, "our_python": sys.executable}
    with (arguments.cache / "race.log").open("a") as log, unittest.mock.patch.object(race, "Side", side):
        row: Row = race.race(model, mode, batch, argparse.Namespace(**settings), log)
    return row


def environment(instructions: str) -> dict[str, str]:
    """Return the environment of a `boxwright` command that starts now."""
    from boxwright.base.threads import prepare_threads

    chosen = {**GIVEN} if instructions == "default" else {**GIVEN, "ATEN_CPU_CAPABILITY": instructions}
    prepare_threads(chosen)
    return chosen


def races(race: Any, arguments: argparse.Namespace) -> Iterator[Row]:
    """Yield a row for each race that ends."""
    from boxwright.base.threads import usable_cpus

    for cpu, count in itertools.product(arguments.cpu, arguments.busy):
        key = {"instructions": cpu, "busy_per_core": count}
        for model, mode, way in itertools.product(arguments.models or race.PLAN, arguments.modes, arguments.ways):
            step, detections, _ = race.PLAN[model]
            for batch in ((step,) if mode == "train" else detections) if mode in WAYS[way] else ():
                try:
                    with (
                        busy(count * usable_cpus()),
                        unittest.mock.patch.dict(os.environ, environment(cpu), clear=True),
                    ):
                        row = raced(race, model, mode, batch, way, arguments)
                except RuntimeError as error:
                    print(f"{model}, {mode} {batch}, {way}: {error}: {arguments.cache / 'race.log'}", flush=True)
                    continue
                print(f"{way:12}{race.shown(row)}\n{race.agreement(row)}", flush=True)
                yield {"way": way, **key, **row}


def processor() -> dict[str, Any]:
    """Return the processor's name, its instructions (Linux), and how many this process may use."""
    from boxwright.base.threads import usable_cpus

    about = Path("/proc/cpuinfo")
    lines = about.read_text().splitlines() if about.is_file() else []
    known = {name.strip(): value.strip() for name, _, value in (line.partition(":") for line in lines)}
    return {
        "processor": known.get("model name", platform.processor()),
        "cores": usable_cpus(),
        "flags": known.get("flags", "").split(),
    }


def keep(row: Row, path: Path) -> None:
    """Write a row in place of the one of the same race on this processor, without the last losses."""
    row = {name: value for name, value in row.items() if not name.endswith("_last")}
    results = json.loads(path.read_text()) if path.is_file() else {}
    about = processor()
    machine = results.setdefault(about.pop("processor"), {**about, "rows": []})
    machine["rows"] = [known for known in machine["rows"] if _key(known) != _key(row)] + [row]
    path.write_text(json.dumps(results, indent=1) + "\n")


def _key(row: Row) -> tuple[Any, ...]:
    return tuple(row[name] for name in ("way", "instructions", "busy_per_core", "model", "mode", "batch"))


def table(results: dict[str, Any]) -> list[str]:
    """Return the lines of a Markdown table: our time over TensorFlow's, the median of rounds' ratios."""
    lines = [
        "| | beside, a core | step | compiled | detection | ONNX Runtime | OpenVINO | a step's memory |",
        "|---|---:|---:|---:|---:|---:|---:|---:|",
    ]
    for name, machine in results.items():
        lines.append(f"| **{name}**, {machine['cores']} cores | | | | | | | |")
        rows = [row for row in machine["rows"] if row["instructions"] == "default"]
        for count, model in itertools.product(sorted({row["busy_per_core"] for row in rows}), NAMES):
            some = [row for row in rows if row["busy_per_core"] == count and row["model"] == model]
            steps = [row for row in some if row["mode"] == "train" and row["way"] == "torch"]
            memory = [f"{row['ours_peak_mib'] / row['tf_peak_mib']:.2f}" for row in steps]
            cells = [_ratios(some, way, mode) for way, modes in WAYS.items() for mode in modes]
            step, detection, compiled, *exported = cells
            if some:
                shown = (NAMES[model], str(count), step, compiled, detection, *exported, *(memory or [""]))
                lines.append(f"| {' | '.join(shown)} |")
    return lines


def _ratios(rows: list[Row], way: str, mode: str) -> str:
    """Return the ratios of a way, of detections with the batch where it has several images."""
    some = sorted((row for row in rows if row["way"] == way and row["mode"] == mode), key=lambda row: row["batch"])
    batches = [f" (batch {row['batch']})" if mode == "detect" and row["batch"] > 1 else "" for row in some]
    return ", ".join(f"{row['ratio_median_of_rounds']:.2f}{batch}" for row, batch in zip(some, batches, strict=True))


def main() -> None:
    """Race, print and write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tf-python", help="a Python that has tensorflow-cpu 2.15.1")
    parser.add_argument("--models", nargs="+", choices=list(NAMES), metavar="MODEL", help="default: all")
    parser.add_argument("--modes", nargs="+", choices=["train", "detect"], default=["train", "detect"])
    parser.add_argument("--ways", nargs="+", choices=list(WAYS), default=list(WAYS))
    parser.add_argument("--busy", type=int, nargs="+", default=[0], help="busy processes beside it, for each core")
    parser.add_argument("--cpu", nargs="+", default=["default"], choices=["default", "avx512", "avx2"])
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--cache", type=Path, default=Path("build/race"), help="where the graphs are unpacked")
    parser.add_argument("--json", type=Path, default=RESULTS)
    parser.add_argument("--worker", type=json.loads, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    race = tf_race()
    if arguments.worker:
        sys.path.insert(0, str(HERE.parent / "src"))
        race.Ours = Ours
        race.work(arguments.worker)
        return
    if not arguments.tf_python:
        parser.error("--tf-python is needed")
    arguments.cache = arguments.cache.resolve()
    arguments.cache.mkdir(parents=True, exist_ok=True)
    print(f"{'way':12}{race.HEAD}", flush=True)
    for row in races(race, arguments):
        keep(row, arguments.json)


if __name__ == "__main__":
    main()
