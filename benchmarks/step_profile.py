"""Where a training step's time goes, by kind of operation: ours and, on its own graphs, TensorFlow's.

    BOXWRIGHT_TF_RACE=folder python benchmarks/step_profile.py --tf-python .venv-race/bin/python
        [--models ssd_mobilenet_v2_320x320 … ssdlite] [--steps 5] [--json FILE]

`make race` makes the environment of TensorFlow. "ssdlite" is SSDLite 320 with MobileNetV2, eight images, beside
torchvision's with MobileNetV3, and is profiled only where it is asked for. Ours is profiled by torch.profiler, each
operator without those that it calls; TensorFlow by its own profiler, each operation from start to end. Both sides
profile one after the other. As operations of TensorFlow may run beside each other, its sum may exceed the step's time.
A profiler costs time itself, most where there are many small operations: compare shares, and take times from `race.py`.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from importlib import import_module
from importlib.machinery import SourceFileLoader
from pathlib import Path
from typing import Any

# Kind → parts of the names of operations, the first that fits; shapes tell the convolutions apart.
KINDS = {
    "convolution, backward": (
        "convolution_backward",
        "BackpropInput",
        "BackpropFilter",
        "_ConvBackward",
    ),
    "convolution": ("convolution", "_Conv", "Conv2D", "DepthwiseConv", "thnn_conv"),
    "normalization with activation": ("_NormAct", "_NormAddAct", "_ActDepthwise", "batch_norm", "BatchNorm"),
    "activation": ("hardtanh", "relu", "Relu", "silu", "Sigmoid", "sigmoid", "clamp_", "threshold", "Swish"),
    "matrix product": ("aten::mm", "aten::addmm", "aten::bmm", "MatMul", "Einsum"),
    "copies, padding, layout": ("copy_", "Pad", "Transpose", "Concat", "aten::cat", "fill_", "StridedSlice", "Slice"),
    "optimizer": ("_foreach", "ResourceApply", "Assign", "lerp"),
}
OTHER = "other"
SSDLITE = "ssdlite"


def kind_of(name: str) -> str:
    """Return the kind of an operation."""
    return next((kind for kind, parts in KINDS.items() if any(part in name for part in parts)), OTHER)


def main() -> None:
    """Profile both sides of each model; print and write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tf-python", help="a Python that has tensorflow-cpu 2.15.1")
    parser.add_argument("--models", nargs="+", help="default: all")
    parser.add_argument("--steps", type=int, default=5)
    parser.add_argument("--cache", type=Path, default=Path("build/race"), help="where the graphs are unpacked")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--side", choices=["tf", "ours", "torchvision"], help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    race = tf_race()
    if arguments.side:
        profile = profiled_tensorflow if arguments.side == "tf" else profiled_torch
        print(json.dumps(profile(race, arguments.models[0], arguments)))
        return
    rows = []
    for model in arguments.models or list(race.PLAN):
        others = "torchvision" if model == SSDLITE else "tf"
        sides = {side: _profiled(side, model, arguments) for side in ("ours", others)}
        rows.append({"model": model, **sides})
        print(model)
        for kind in (*KINDS, OTHER, "sum", "step"):
            print(f"  {kind:32}" + "".join(f"{side} {ms.get(kind, 0.0):8.1f} ms   " for side, ms in sides.items()))
        if arguments.json:
            from race import processor  # imports boxwright, which TensorFlow's environment lacks

            arguments.json.write_text(json.dumps({**processor(), "rows": rows}, indent=1) + "\n")


def profiled_torch(race: Any, model: str, arguments: argparse.Namespace) -> dict[str, float]:
    """Return milliseconds a step of each kind, ours or torchvision's."""
    import boxwright  # noqa: F401 – first: it sets how long threads spin

    # isort: split
    from torch.profiler import ProfilerActivity, profile

    if model == SSDLITE:
        run = _ssdlite_step(arguments.side)
    else:
        run = race.Ours(_told(race, model), race.unpacked(model, arguments.cache)).run
    for _ in range(3):
        run()
    with profile(activities=[ProfilerActivity.CPU]) as profiler:
        began = time.perf_counter()
        for _ in range(arguments.steps):
            run()
        seconds = time.perf_counter() - began
    spent: Counter[str] = Counter()
    for event in profiler.key_averages():
        spent[kind_of(event.key)] += event.self_cpu_time_total / 1000
    return _a_step(spent, seconds, arguments.steps)


def _ssdlite_step(side: str) -> Callable[[], object]:
    """Return a step of the comparison in speed.py."""
    import speed
    from boxwright.runtime.allocator import keep_freed_memory

    keep_freed_memory()
    theirs, ours = speed.row_b(compile=False).values()
    return theirs if side == "torchvision" else ours


def profiled_tensorflow(race: Any, model: str, arguments: argparse.Namespace) -> dict[str, float]:
    """Return milliseconds a step of each kind."""
    tf = import_module("tensorflow")
    xplane = import_module("tensorflow.tsl.profiler.protobuf.xplane_pb2")

    side = race.TensorFlow(_told(race, model), race.unpacked(model, arguments.cache))
    for _ in range(3):
        side.run()
    with tempfile.TemporaryDirectory() as folder:
        tf.profiler.experimental.start(folder)
        began = time.perf_counter()
        for _ in range(arguments.steps):
            side.run()
        seconds = time.perf_counter() - began
        tf.profiler.experimental.stop()
        space = xplane.XSpace.FromString(next(Path(folder).rglob("*.xplane.pb")).read_bytes())
    spent: Counter[str] = Counter()
    for plane in space.planes:
        names = {number: about.name for number, about in plane.event_metadata.items()}
        for line in plane.lines:
            for event in line.events:
                # Operations are named "node:type"; names of C++ functions, which hold others, have two colons.
                name = names[event.metadata_id]
                _, _, operation = name.partition(":")
                if operation.isidentifier() and not operation.startswith("__"):
                    spent[kind_of(operation)] += event.duration_ps / 1e9
    return _a_step(spent, seconds, arguments.steps)


def _a_step(spent: Counter[str], seconds: float, steps: int) -> dict[str, float]:
    per_step = {kind: round(milliseconds / steps, 2) for kind, milliseconds in spent.items()}
    return {**per_step, "sum": round(sum(per_step.values()), 2), "step": round(1000 * seconds / steps, 2)}


def _told(race: Any, model: str) -> dict[str, Any]:
    batch = {"ssd_mobilenet_v2_320x320": 8, "ssd_mobilenet_v2_fpnlite_320x320": 8}.get(model, 1)
    told = {"mode": "train", "batch": batch, "seed": 1, "rate": 0.001, "threads": 0, "room": 100, "plain": False}
    return told | {"image_size": [480, 640], "fresh": False, "gain": race.PLAN[model][2]}


def tf_race() -> Any:
    """Return the module race.py of TensorFlow's graphs."""
    folder = os.environ.get("BOXWRIGHT_TF_RACE")
    if not folder or not (Path(folder) / "race.py").is_file():
        sys.exit(
            f"BOXWRIGHT_TF_RACE must name the folder of TensorFlow's graphs and race.py: it is {folder or 'not set'}"
        )
    return SourceFileLoader("tf_race", str(Path(folder) / "race.py")).load_module()


def _profiled(side: str, model: str, arguments: argparse.Namespace) -> dict[str, float]:
    python = arguments.tf_python if side == "tf" else sys.executable
    options = ["--side", side, "--models", model, "--steps", str(arguments.steps), "--cache", str(arguments.cache)]
    command = [python, str(Path(__file__).resolve()), *options]
    ended = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
    return dict(json.loads(ended.stdout.splitlines()[-1]))


if __name__ == "__main__":
    main()
