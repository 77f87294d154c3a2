"""One change made because of what an evaluation's report says: does AP move, and is it more than chance?

    BOXWRIGHT_DATA=folder-that-holds-bccd python benchmarks/report_driven_change.py WORK
        [--steps 250] [--seeds 3] [--json FILE]

The detector of bccd.config learns from scratch on BCCD's training images at 192×144, in batches of 8. The first seed
has a report on the validation images, by which the change was chosen: no anchor fits the platelets, and `finer` has a
level with smaller anchors. The test images judge it. The difference's interval is of draws of the images, the same for
all runs; that of the mean over seeds leaves out how much seeds differ, which stands beside it.

WORK keeps runs, evaluations and pages: what is there is not run again, and an interrupted training goes on.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
from pathlib import Path
from typing import Any

import numpy as np

import boxwright as bw
from boxwright.config.load import dump_message
from boxwright.evaluation.about import about_evaluation
from boxwright.evaluation.evaluate import evaluate_on_reader, open_for_evaluation
from boxwright.evaluation.image_results import ImageResults
from boxwright.evaluation.settings import EvaluationSettings
from boxwright.evaluation.write import write_evaluation
from boxwright.report.bootstrap import interval
from boxwright.report.compare import Comparison, compare
from boxwright.report.matching import mean_ap
from boxwright.report.sources import source_of_evaluation
from boxwright.report.write import write_report

HERE = Path(__file__).parent
# What is replaced in the configuration.
VARIANTS = {"before": {}, "finer": {"min_level: 3": "min_level: 2"}}
SPLITS = ("val", "test")


def configuration(variant: str, steps: int) -> str:
    """Return a variant's configuration: a cosine over all steps, of which a twentieth are to warm up."""
    text = (HERE / "bccd.config").read_text()
    changes = {
        "3000": str(steps),
        "batch_size: 16": "batch_size: 8",
        "warmup_steps: 150": f"warmup_steps: {steps // 20}",
        "moving_average_decay: 0.995": "moving_average_decay: 0.99",
        "height: 240 width: 320": "height: 144 width: 192",
        '"trainval"': '"train"',
        '"bccd"': json.dumps(str(Path(os.environ["BOXWRIGHT_DATA"]).resolve() / "bccd")),
        '"bccd_label_map.pbtxt"': json.dumps(str(HERE.resolve() / "bccd_label_map.pbtxt")),
    }
    for old, new in (changes | VARIANTS[variant]).items():
        if old not in text:
            raise SystemExit(f"{old!r} is not in the configuration")
        text = text.replace(old, new)
    return text


def run(variant: str, seed: int, steps: int, work: Path) -> Path:
    """Train and evaluate once, and return the run's folder."""
    folder = work / f"{variant}-{seed}"
    path = work / f"{variant}.config"
    path.write_text(configuration(variant, steps))
    if not (folder / f"ckpt-{steps}.pt").is_file():
        settings = bw.RunSettings(seed=seed, evaluate=False, checkpoint_every_n=50, workers=0, device="cpu")
        if bw.train(bw.load_config(path), folder, settings).step < steps:
            raise SystemExit("training was stopped; the same command goes on")
    for split in SPLITS:
        if not (folder / split / "metrics.json").is_file():
            evaluate(folder, path, split)
    if not seed and not (folder / "report" / "report.json").is_file():
        write_report(source_of_evaluation(folder / "val"), folder / "report")
    print(folder.name, "ended", flush=True)
    return folder


def evaluate(folder: Path, path: Path, split: str) -> None:
    """Evaluate a run on the images of a split, as `boxwright evaluate --out` does."""
    config = bw.load_config(path, [f'eval_input_reader[0].voc_input_reader.image_set="{split}"'])
    settings = EvaluationSettings(workers=0, device="cpu")
    opened = open_for_evaluation(folder, config, settings)
    with ImageResults(folder / split) as results:
        evaluation = evaluate_on_reader(config, opened.opened, settings, keep=results.add)
        about = about_evaluation(opened, settings, path)
        write_evaluation(evaluation, results, folder / split, opened.step, about=about)
    (folder / split / "pipeline.config").write_text(dump_message(config))


def largest_losses(page: Path) -> list[dict[str, Any]]:
    """Return the three parts that lose most beyond their share, as on a report's page."""
    parts = json.loads((page / "report.json").read_text())["parts"]
    parts = [part for part in parts if part["excess"] > 1e-6 and part["share"] < 1 - 1e-9]
    return [
        {"cause": f"{part['factor']}, {part['name']}", **{name: part[name] for name in ("objects", "gain", "excess")}}
        for part in parts[:3]
    ]


def difference(pairs: list[Comparison]) -> dict[str, Any]:
    """Return the change of AP, AP50 and AP75: of each seed, and of their mean."""
    found: dict[str, Any] = {}
    for number, part in enumerate((slice(None), slice(1), slice(5, 6))):
        rows = [pair.metrics[number] for pair in pairs]
        drawn = [
            np.array([mean_ap(one[:, part]) for one in pair.second.drawn])
            - np.array([mean_ap(one[:, part]) for one in pair.first.drawn])
            for pair in pairs
        ]
        values = [row.difference.value for row in rows]
        found[rows[0].name] = {
            "before": [row.first for row in rows],
            "after": [row.second for row in rows],
            "difference of each seed": [row.difference.to_list() for row in rows],
            "difference": interval(statistics.mean(values), np.mean(drawn, axis=0)).to_list(),
            "deviation of seeds": statistics.stdev(values) if len(values) > 1 else None,
        }
    return found


def main() -> None:
    """Run what is missing, and print what changed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("work", type=Path)
    parser.add_argument("--steps", type=int, default=250)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--json", type=Path)
    given = parser.parse_args()
    given.work.mkdir(parents=True, exist_ok=True)
    seeds = range(given.seeds)
    runs = [[run(variant, seed, given.steps, given.work) for variant in VARIANTS] for seed in seeds]
    found: dict[str, Any] = {"steps": given.steps, "seeds": given.seeds}
    found["largest losses"] = {
        variant: largest_losses(folder / "report") for variant, folder in zip(VARIANTS, runs[0], strict=True)
    }
    for split in SPLITS:
        pairs = []
        for first, second in runs:
            sources = [source_of_evaluation(folder / split) for folder in (first, second)]
            pairs.append(compare(sources[0].tables, sources[1].tables))
        found[split] = difference(pairs)
    print(json.dumps(found, indent=1))
    if given.json:
        given.json.write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main()
