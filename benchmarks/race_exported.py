"""Race detections of our exported files against TensorFlow's own graphs of the Object Detection API.

    BOXWRIGHT_TF_RACE=folder python benchmarks/race_exported.py --tf-python .venv-race/bin/python
        [--runtime onnxruntime openvino] [--busy 0 1 3] [--models ssd_mobilenet_v2_320x320 …] [--rounds 7] [--json FILE]

As `race.py`, whose graphs, weights and pictures these are, with its environment (`make race`); ours is written by
`boxwright.export`, which compares it with the detector, and opened by `boxwright.load`.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal

import boxwright as bw
from boxwright.base.threads import usable_cpus
from race import processor
from step_profile import tf_race
from threads import busy

FORMATS: dict[str, tuple[Literal["onnx", "openvino"], str]] = {
    "onnxruntime": ("onnx", "onnx"),
    "openvino": ("openvino", "xml"),
}


def main() -> None:
    """Race, print and write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tf-python", help="a Python that has tensorflow-cpu 2.15.1")
    parser.add_argument("--runtime", nargs="+", choices=list(FORMATS), default=list(FORMATS))
    parser.add_argument("--models", nargs="+", help="default: all")
    parser.add_argument("--busy", type=int, nargs="+", default=[0], help="busy processes beside it, for each core")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--cache", type=Path, default=Path("build/race"), help="where the graphs are unpacked")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--worker", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    race = tf_race()
    if arguments.worker:
        told = json.loads(arguments.worker)
        race.Ours = exported_side(race, told["runtime"])
        race.work(told)
        return
    arguments.cache = arguments.cache.resolve()
    rows = []
    print("runtime     " + race.HEAD, flush=True)
    with (arguments.cache / "race.log").open("w") as log:
        for count, model, batch, runtime in races(race, arguments):
            with busy(count * usable_cpus()):
                row = {"runtime": runtime, "busy_per_core": count, **raced(race, model, batch, runtime, arguments, log)}
            rows.append(row)
            print(f"{runtime:12}{race.shown(row)}\n{race.agreement(row)}", flush=True)
            if arguments.json:
                content = {**processor(), "threads": usable_cpus(), "rows": rows}
                arguments.json.write_text(json.dumps(content, indent=1) + "\n")


def races(race: Any, arguments: argparse.Namespace) -> Iterator[tuple[int, str, int, str]]:
    """Return the busy processes for each core, the model, the batch and the runtime of each row."""
    models = arguments.models or list(race.PLAN)
    batches = [(model, batch) for model in models for batch in race.PLAN[model][1]]
    for count, (model, batch), runtime in itertools.product(arguments.busy, batches, arguments.runtime):
        yield count, model, batch, runtime


def raced(race: Any, model: str, batch: int, runtime: str, arguments: argparse.Namespace, log: Any) -> Any:
    """Return a row of `race.py` in which our side is an exported file."""
    plain = race.Side

    def side(python: str, told: dict[str, Any], log: Any) -> Any:
        if told["side"] == "tf":
            return plain(python, told, log)
        race.__file__ = __file__  # what a side's process runs
        try:
            return plain(python, told | {"runtime": runtime}, log)
        finally:
            race.__file__ = str(Path(os.environ["BOXWRIGHT_TF_RACE"]) / "race.py")

    race.Side = side
    settings = {"seed": 1, "rate": 1e-3, "threads": 0, "image_size": [480, 640], "plain": False, "room": 100}
    settings |= {"fresh": False, "times": 2, "rounds": arguments.rounds, "cache": arguments.cache}
    settings |= {"tf_python": arguments.tf_python, "our_python": sys.executable}
    try:
        return race.race(model, "detect", batch, argparse.Namespace(**settings), log)
    finally:
        race.Side = plain


def exported_side(race: Any, runtime: str) -> type:
    """Return our side of the race with the detector exported for a runtime."""

    class Exported(race.Ours):  # type: ignore[misc] # a class of another file
        def build(self, weights: Any) -> None:
            super().build(weights)
            if weights is None:  # detects nothing, which an export does not accept
                return
            detector = bw.build_detector(self.config)
            bw.load_weights(detector, weights)
            kind, suffix = FORMATS[runtime]
            with tempfile.TemporaryDirectory() as folder:
                file = Path(folder) / f"detector.{suffix}"
                # Made-up weights' scores are below what the comparison asks for; those that the race prints must agree.
                bw.export(detector, file, images=self.given, format=kind, allow_difference=True)
                self.detector = bw.load(file).opened

    return Exported


if __name__ == "__main__":
    main()
