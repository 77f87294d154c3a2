"""What `boxwright init` comes to, on real data and on two made-up sets.

    BOXWRIGHT_DATA=folder-of-bccd-and-raccoon python benchmarks/archive/first_run.py bccd raccoon tiny elongated

bccd: 900 steps of the configuration that `init` writes, and 900 of benchmarks/bccd.config, with two seeds each.
raccoon: five minutes of `init`'s configuration, and the project's own for as many seconds; both are evaluated on the
images that `init` held out, on which neither is trained. tiny, elongated: pictures of objects of 8 to 14 pixels, and of
bars 6 to 10 times as long as wide; trained for ten minutes.
"""

from __future__ import annotations

import json
import os
import platform
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image

import boxwright as bw
from boxwright.training.autoconfig.settings import InitSettings
from boxwright.training.autoconfig.start import init_config

HERE = Path(__file__).parent
RESULTS = HERE / "results" / "first-run-cpu.json"
AP, AP50 = "DetectionBoxes_Precision/mAP", "DetectionBoxes_Precision/mAP@.50IOU"
SEEDS = (0, 1)
STEPS = 900
QUIET: dict[str, Any] = {"evaluate": False, "device": "cpu", "workers": 0, "checkpoint_every_n": 100_000}


def data_folder() -> Path:
    """Return the folder of real data."""
    named = os.environ.get("BOXWRIGHT_DATA")
    if not named:
        raise SystemExit("BOXWRIGHT_DATA names no folder with bccd and raccoon")
    return Path(named)


def measured(model_dir: Path, **options: Any) -> dict[str, float]:
    """Return AP and AP50 of a run."""
    found = bw.evaluate(model_dir, device="cpu", **options)
    return {"AP": round(found[AP], 4), "AP50": round(found[AP50], 4)}


def bccd(folder: Path) -> dict[str, Any]:
    """Compare with the configuration that was written by hand, after the same number of steps."""
    data = data_folder() / "bccd"
    rows: dict[str, Any] = {"steps": STEPS, "init": [], "by hand": []}
    for seed in SEEDS:
        wishes = InitSettings(epochs=STEPS * 16 / 292, steps=False)
        config = init_config(data, folder / f"init-{seed}" / "pipeline.config", wishes).config
        bw.train(config, folder / f"init-{seed}" / "model", seed=seed, **QUIET)
        rows["init"].append(measured(folder / f"init-{seed}" / "model"))
        labels, schedule = HERE.parent / "bccd_label_map.pbtxt", "train_config.optimizer.adam_optimizer.learning_rate"
        changes = [f"{reader}.{field}" for reader in ("train_input_reader", "eval_input_reader") for field in
                   (f"label_map_path={labels}", f"voc_input_reader.root={data}")]  # fmt: skip
        cosine = f"{schedule}.cosine_decay_learning_rate"
        changes += [f"train_config.num_steps={STEPS}", f"{cosine}.total_steps={STEPS}", f"{cosine}.warmup_steps=45"]
        bw.train(HERE.parent / "bccd.config", folder / f"hand-{seed}", overrides=changes, seed=seed, **QUIET)
        rows["by hand"].append(measured(folder / f"hand-{seed}"))
    means = {name: round(float(np.mean([row["AP"] for row in rows[name]])), 4) for name in ("init", "by hand")}
    return {**rows, "mean AP": means}


def raccoon(folder: Path) -> dict[str, Any]:
    """Compare with the user's own configuration, for as many seconds."""
    data = data_folder() / "raccoon"
    config = init_config(data, folder / "pipeline.config", InitSettings(minutes=5)).config
    began = time.monotonic()
    run = bw.train(config, folder / "init", **QUIET)
    seconds = time.monotonic() - began
    loaded = bw.load_config(config)
    (own,) = (data / "training").glob("*.config")
    theirs = bw.load_config(own, ["train_config.fine_tune_checkpoint=", "train_config.from_detection_checkpoint=false"])
    theirs.train_input_reader = loaded.train_input_reader
    theirs.eval_input_reader = loaded.eval_input_reader
    other = bw.train(theirs, folder / "theirs", max_seconds=seconds, epochs=1e6, **QUIET)
    return {
        "seconds": round(seconds),
        "init": {**measured(folder / "init"), "steps": run.step},
        "their own": {**measured(folder / "theirs"), "steps": other.step},
    }


def made_up(draw: Callable[[np.random.Generator], tuple[NDArray[np.uint8], list[tuple[int, list[float]]]]],
            folder: Path, names: list[str]) -> dict[str, Any]:  # fmt: skip
    """Write pictures as YOLO data, train for ten minutes, evaluate."""
    generator = np.random.default_rng(0)
    for split, count in (("train", 240), ("val", 60)):
        for kind in ("images", "labels"):
            (folder / "data" / kind / split).mkdir(parents=True)
        for number in range(count):
            image, objects = draw(generator)
            Image.fromarray(image).save(folder / "data" / "images" / split / f"{number}.png")
            height, width = image.shape[:2]
            rows = [
                f"{label} {(x0 + x1) / 2 / width} {(y0 + y1) / 2 / height} {(x1 - x0) / width} {(y1 - y0) / height}"
                for label, (x0, y0, x1, y1) in objects
            ]
            (folder / "data" / "labels" / split / f"{number}.txt").write_text("\n".join(rows))
    text = f"train: images/train\nval: images/val\nnames: {names}\n"
    (folder / "data" / "data.yaml").write_text(text)
    began = time.monotonic()
    started = init_config(folder / "data", folder / "pipeline.config", InitSettings(minutes=9))
    left = 600 - (time.monotonic() - began)
    run = bw.train(started.config, folder / "model", max_seconds=left, **QUIET)
    chosen = {choice.what: choice.chosen for choice in started.choices}
    spent = {"seconds": round(time.monotonic() - began), "steps": run.step}
    return {**measured(folder / "model"), **spent, "chosen": chosen}


def _background(generator: np.random.Generator, side: int) -> NDArray[np.uint8]:
    """Return a noisy picture with soft blotches."""
    rough = generator.uniform(60, 190, (8, 8, 3))
    image = np.asarray(Image.fromarray(rough.astype(np.uint8)).resize((side, side), Image.Resampling.BICUBIC))
    return np.clip(image + generator.normal(0, 8, image.shape), 0, 255).astype(np.uint8)


def draw_tiny(generator: np.random.Generator) -> tuple[NDArray[np.uint8], list[tuple[int, list[float]]]]:
    """Return a picture of 320 pixels a side with discs, squares and crosses of 8 to 14 pixels."""
    image, objects = _background(generator, 320), list[tuple[int, list[float]]]()
    for _ in range(generator.integers(3, 9)):
        label, size = int(generator.integers(3)), int(generator.integers(8, 15))
        x, y = (int(value) for value in generator.integers(0, 320 - size, 2))
        across, down = np.meshgrid(np.arange(size) - (size - 1) / 2, np.arange(size) - (size - 1) / 2)
        shape = (across**2 + down**2 <= (size / 2) ** 2, np.ones((size, size), bool),
                 (np.abs(across) <= size / 6) | (np.abs(down) <= size / 6))[label]  # fmt: skip
        color = generator.choice([0, 255], 3)
        image[y : y + size, x : x + size][shape] = color
        objects.append((label, [float(value) for value in (x, y, x + size, y + size)]))
    return image, objects


def draw_elongated(generator: np.random.Generator) -> tuple[NDArray[np.uint8], list[tuple[int, list[float]]]]:
    """Return a picture of 256 pixels a side with plain and striped bars, upright or lying."""
    image, objects = _background(generator, 256), list[tuple[int, list[float]]]()
    for _ in range(generator.integers(2, 6)):
        label, width = int(generator.integers(2)), int(generator.integers(8, 17))
        length = int(min(width * generator.uniform(6, 10), 200))
        tall = bool(generator.integers(2))
        w, h = (width, length) if tall else (length, width)
        x, y = int(generator.integers(0, 256 - w)), int(generator.integers(0, 256 - h))
        bar = np.broadcast_to(generator.choice([0, 255], 3), (h, w, 3)).astype(np.uint8).copy()
        if label:
            stripes = (np.arange(length) // 4) % 2 == 0
            bar[stripes if tall else slice(None), slice(None) if tall else stripes] = 128
        image[y : y + h, x : x + w] = bar
        objects.append((label, [float(value) for value in (x, y, x + w, y + h)]))
    return image, objects


CASES: dict[str, Callable[[Path], dict[str, Any]]] = {
    "bccd": bccd,
    "raccoon": raccoon,
    "tiny": lambda folder: made_up(draw_tiny, folder, ["disc", "square", "cross"]),
    "elongated": lambda folder: made_up(draw_elongated, folder, ["plain", "striped"]),
}


def main() -> None:
    """Run the cases that are named, or all, and add them to the results."""
    found = json.loads(RESULTS.read_text()) if RESULTS.is_file() else {}
    for name in sys.argv[1:] or CASES:
        with tempfile.TemporaryDirectory() as folder:
            found[name] = {
                **CASES[name](Path(folder)),
                "torch": torch.__version__,
                "threads": torch.get_num_threads(),
                "processor": platform.processor() or platform.machine(),
            }
        print(name, json.dumps(found[name]))
        RESULTS.write_text(json.dumps(found, indent=1, sort_keys=True) + "\n")


if __name__ == "__main__":
    main()
