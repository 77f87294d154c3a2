"""What an export costs and brings: average precision, raw outputs, size and time in each format, of five families.

    python benchmarks/exports.py WORK [--only ssd d0 …] [--formats onnx …] [--most-steps N] [--rounds 15]

Trains each family on the shapes of the demo (half an hour in all on two cores), exports it to ONNX, OpenVINO and eight
bits, evaluates every file on the held-out pictures, and measures all in interleaved rounds: by the commands that users
type. What is in WORK is not trained or exported again. Detectors of full size are exported in `race.py`.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from importlib import resources
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
ROOT = HERE.parent
RESULTS = HERE / "results" / "exports-cpu.json"
FORMATS = {
    "onnx": ("detector.onnx", ()),
    "openvino": ("detector.xml", ()),
    "int8": ("int8.onnx", ("--precision", "int8")),
}
AP = "DetectionBoxes_Precision/mAP"

RATE = "train_config.optimizer.{}_optimizer.learning_rate.cosine_decay_learning_rate.total_steps={}"
MASKS = "mask_rcnn_mobilenet_v3_fpn_shapes"
BOXES_ALONE = (
    "model.faster_rcnn.number_of_stages=2",
    "model.faster_rcnn.second_stage_box_predictor.mask_rcnn_box_predictor.predict_instance_masks=false",
    "train_input_reader.load_instance_masks=false",
    "eval_input_reader.load_instance_masks=false",
    'eval_config.metrics_set=["coco_detection_metrics"]',
)
# A configuration, the optimizer that it names, steps (few, as exports are what is measured), and what is set besides.
MADE: dict[str, tuple[str, str, int, tuple[str, ...]]] = {
    "ssd": ("shapes", "adam", 700, ()),
    "d0": ("efficientdet", "adam", 1600, ()),
    "refinedet": ("refinedet_mobilenet_v2_shapes", "adam", 1000, ()),
    "faster": (MASKS, "adamw", 800, BOXES_ALONE),
    "mask": (MASKS, "adamw", 1000, ()),
}


def boxwright(*words: object) -> None:
    """Run a command as a user does."""
    print("$ boxwright", *words, flush=True)
    subprocess.run([sys.executable, "-m", "boxwright", *map(str, words)], check=True)


def configuration(name: str, work: Path) -> Path:
    """Write a family's configuration for the demo's data, and return its path."""
    source = MADE[name][0]
    shapes = (resources.files("boxwright") / "assets" / "shapes.config").read_text()
    if source == "shapes":
        text = shapes
    elif source == "efficientdet":
        recorded = json.loads((ROOT / "tests/golden/models/ssd_efficientdet_d0_512x512_coco17_tpu-8.json").read_text())
        model = recorded["model_text"].replace("num_classes: 90", "num_classes: 4")
        model = model.replace("_dimension: 512", "_dimension: 192")
        text = "model {\n" + model + "}\n" + shapes[shapes.index("train_config {") :]
    else:
        text = f'preset: "{source}"\n' + shapes[shapes.index("train_input_reader {") :]
        if source == MASKS:
            text = text.replace(
                "_input_reader {\n  label",
                "_input_reader {\n  load_instance_masks: true\n  mask_type: PNG_MASKS\n  label",
            )
            text = text.replace(
                "eval_config {", 'eval_config {\n  metrics_set: ["coco_detection_metrics", "coco_mask_metrics"]'
            )
    data = work / "demo" / "data"
    for file in ("label_map.pbtxt", "train.record-?????-of-00002", "val.record"):
        for known in (f'"demo/data/{file}"', f'"{file}"'):
            text = text.replace(known, f'"{data / file}"')
    path = work / f"{name}.config"
    path.write_text(text)
    return path


def evaluated(model: Path, config: Path, out: Path) -> dict[str, float]:
    """Return a model's metrics on the held-out pictures."""
    if not (out / "metrics.json").exists():
        boxwright("evaluate", "--model_dir", model, "--config", config, "--out", out)
    metrics: dict[str, float] = json.loads((out / "metrics.json").read_text())
    return metrics


def made(name: str, work: Path, arguments: argparse.Namespace) -> dict[str, Any]:
    """Train a detector, export it, and measure all of it."""
    _, optimizer, steps, changes = MADE[name]
    steps = min(steps, arguments.most_steps)
    config, folder = configuration(name, work), work / name
    sets = [f"train_config.num_steps={steps}", RATE.format(optimizer, steps), *changes]
    options = [word for change in sets for word in ("--set", change)]
    if not (folder / f"ckpt-{steps}.pt").exists():
        boxwright("train", "--config", config, "--model_dir", folder, "--no_evaluate", *options)
    whole = folder / "pipeline.config"
    metrics = evaluated(folder, whole, work / "evaluated" / f"{name}-torch")
    rows: dict[str, Any] = {"torch": {"AP": metrics[AP], "AP50": metrics[f"{AP}@.50IOU"]}}
    files = []
    for kind in arguments.formats:
        file, words = FORMATS[kind]
        path = folder / "export" / file
        path.parent.mkdir(exist_ok=True)
        try:
            if not path.exists():
                boxwright("export", folder, path, *words)
        except subprocess.CalledProcessError:
            rows[kind] = {"refused": True}
            continue
        metrics = evaluated(path, whole, work / "evaluated" / f"{name}-{kind}")
        report = json.loads(Path(f"{path}.parity.json").read_text())
        size = sum(
            part.stat().st_size for part in path.parent.glob(f"{path.stem}.*") if part.suffix in (path.suffix, ".bin")
        )
        rows[kind] = {"AP": metrics[AP], "AP50": metrics[f"{AP}@.50IOU"], "bytes": size, "report": report["stages"]}
        files.append(path)
    timings = work / f"{name}-times.json"
    settings = ("--rounds", arguments.rounds, "--threads", arguments.threads, "--out", timings)
    boxwright("benchmark", folder, *files, "--batch", 1, "--batch", 8, *settings)
    rows["times"] = json.loads(timings.read_text())
    return rows


def table(results: dict[str, Any]) -> list[str]:
    """Return the lines of a Markdown table: of times the median of rounds, in PyTorch's time."""
    lines = ["| | format | AP | file, MB | one image | eight |", "|---|---|---:|---:|---:|---:|"]
    for name, rows in results.items():
        timings = {(Path(row["name"]).name, row["batch"]): row for row in rows["times"]["timings"]}
        for kind, (file, _) in {"torch": (name, ()), **FORMATS}.items():
            if "AP" not in (row := rows.get(kind, {})):
                continue
            times = [timings[file, batch] for batch in (1, 8)]
            shown = [f"{time['ratio']:.2f}" if kind != "torch" else f"{time['median_ms']:.0f} ms" for time in times]
            size = f"{row['bytes'] / 1e6:.1f}" if "bytes" in row else ""
            lines.append(f"| {name} | {kind} | {row['AP']:.4f} | {size} | {' | '.join(shown)} |")
    return lines


def main() -> None:
    """Train, export, measure, write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("work", type=Path)
    parser.add_argument("--only", nargs="+", default=list(MADE), choices=list(MADE))
    parser.add_argument("--formats", nargs="+", default=list(FORMATS), choices=list(FORMATS))
    parser.add_argument("--most-steps", type=int, default=10_000)
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--json", type=Path, default=RESULTS)
    arguments = parser.parse_args()
    arguments.work.mkdir(parents=True, exist_ok=True)
    if not (arguments.work / "demo" / "pipeline.config").exists():
        boxwright("demo", "--shapes", "--data_only", "--out", arguments.work / "demo")
    results = json.loads(arguments.json.read_text()) if arguments.json.exists() else {}
    for name in arguments.only:
        results[name] = made(name, arguments.work.resolve(), arguments)
        arguments.json.write_text(json.dumps(results, indent=1).replace(f"{arguments.work.resolve()}/", "") + "\n")
    print("\n".join(table(results)))


if __name__ == "__main__":
    main()
