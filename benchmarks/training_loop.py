"""What `train` costs beside its steps: images a second from records and from JPEG files, and what limits them.

    python benchmarks/training_loop.py [--windows 5] [--steps 20] [--batch 8] [--only records] [--json FILE]

SSD FPNLite 320 with its preset's augmentation (flips, crops) on made-up JPEG images of 640×480, with a checkpoint every
100 steps (ten times as often as by default). After each window the run pauses, and a second learner takes as many bare
steps of one batch; the rates of all windows are compared, and the machine's other work falls on both. Preparing alone
(reading, decoding, augmentation, resizing, collating) is measured in processor time, user's and system's, of one
thread. Where it takes a share of a step's processor time, the most that both together allow is a step's time and
preparing's, spread over all cores. Also: an evaluation, and the seconds from the command's start to the first step, the
second time.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import boxwright as bw  # first: it sets how long threads spin, which PyTorch reads when it is imported

# isort: split
import torch

from boxwright.base.distributed import Processes
from boxwright.config.load import dump_message
from boxwright.data.augmentation.transform import Chain  # noqa: F401  # its import is not timed
from boxwright.data.convert import write_coco, write_tfrecords
from boxwright.data.order import SamplePosition
from boxwright.data.shapes import ShapesDataset
from boxwright.pipeline.training import build_training
from boxwright.runtime.allocator import keep_freed_memory
from boxwright.runtime.measure import load
from boxwright.training.examples import training_examples
from boxwright.training.log import Scalars
from boxwright.training.state import new_state, placed
from boxwright.training.step import Learner
from boxwright.training.train import train
from boxwright.types import Sample
from race import processor

PRESET = "ssd_mobilenet_v2_fpnlite_320"
IMAGES, EVALUATED, SIZE = 64, 32, (480, 640)
CHECKPOINT_EVERY = 100
READERS = {
    "records": 'tf_record_input_reader { input_path: "DATA/shapes.record" } label_map_path: "DATA/label_map.pbtxt"',
    "JPEG files": 'coco_input_reader { annotations: "DATA/instances.json" image_folder: "DATA/images" }',
}
_TICKS = os.sysconf("SC_CLK_TCK")


def write_data(folder: Path) -> None:
    """Write the images as records and as files."""
    for name, count in (("train", IMAGES), ("val", EVALUATED)):
        if (folder / name / "instances.json").is_file():
            continue
        dataset = ShapesDataset(count, seed=len(name), size=SIZE)
        write_tfrecords(dataset, folder / name / "shapes.record")
        write_coco(dataset, folder / name / "instances.json")


def configuration(folder: Path, reader: str, batch: int, steps: int) -> Path:
    """Write the configuration of a run, and return its path."""
    readers = [
        f"{name}_input_reader {{ {READERS[reader].replace('DATA', str(folder / part))} }}"
        for name, part in (("train", "train"), ("eval", "val"))
    ]
    path = folder / f"{reader.split()[0]}.config"
    path.write_text("\n".join([f'preset: "{PRESET}"', *readers]))
    changes = [f"train_config.batch_size={batch}", f"train_config.num_steps={steps}", "model.ssd.num_classes=4"]
    path.write_text(dump_message(bw.load_config(path, changes)))
    return path


def _processor_s() -> float:
    """Return the processor time so far, of this process and of the workers that it has now."""
    of_workers = 0
    for child in multiprocessing.active_children():
        fields = Path(f"/proc/{child.pid}/stat").read_text().rpartition(")")[2].split()
        of_workers += int(fields[11]) + int(fields[12])
    return time.process_time() + of_workers / _TICKS


@dataclass
class Clock:
    """Wall and processor seconds since a moment."""

    wall: float = field(default_factory=time.perf_counter)
    processor: float = field(default_factory=_processor_s)

    def passed(self) -> tuple[float, float]:
        """Return wall and processor seconds since then."""
        return time.perf_counter() - self.wall, _processor_s() - self.processor


class Windows:
    """A listener that times a run's windows of steps, and takes bare steps after each."""

    def __init__(self, bare: Callable[[], object], steps: int) -> None:
        """Note how many steps a window has."""
        self.bare, self.steps = bare, steps
        self.loop: list[tuple[float, float]] = []
        self.alone: list[tuple[float, float]] = []
        self._clock: Clock | None = None

    def on_event(self, step: int, event: object) -> None:
        """End a window, take as many bare steps, and begin the next."""
        if not isinstance(event, Scalars) or step % self.steps:
            return
        if self._clock is not None:  # the first window warms up
            self.loop.append(self._clock.passed())
        clock = Clock()
        for _ in range(self.steps):
            self.bare()
        if self._clock is not None:
            self.alone.append(clock.passed())
        self._clock = Clock()

    def close(self) -> None:
        """Hear the end."""


def _bare_step(config: Any, batch: int) -> tuple[Callable[[], object], float]:
    """Return a function that takes a step of one batch, and the processor seconds that preparing a batch takes."""
    from boxwright.data.batch import collate
    from boxwright.pipeline.input_reader import build_dataset

    dataset = build_dataset(config.train_input_reader, "train_input_reader")
    detector = placed(bw.build_detector(config, dataset.categories), torch.device("cpu"))
    plan = build_training(config)
    examples = training_examples(config, dataset, detector, 0, skip_bad=False)

    def prepared(start: int) -> Any:
        found = [examples[SamplePosition(0, (start + number) % IMAGES, 0)] for number in range(batch)]
        return collate([example for example in found if isinstance(example, Sample)])

    given = prepared(0)
    began = time.process_time()
    for number in range(IMAGES // batch):
        prepared(number * batch)
    preparing = (time.process_time() - began) / (IMAGES // batch)
    learner = Learner(new_state(detector.train(), plan), plan, Processes())
    return (lambda: learner.learn(given)), preparing


def measure(folder: Path, reader: str, workers: int, given: argparse.Namespace) -> dict[str, Any]:
    """Return what a run costs beside bare steps."""
    keep_freed_memory()
    config = bw.load_config(configuration(folder, reader, given.batch, given.steps * (given.windows + 1)))
    bare, preparing = _bare_step(config, given.batch)
    windows = Windows(bare, given.steps)
    settings = bw.RunSettings(
        evaluate=False, workers=workers, log_every_n=given.steps, checkpoint_every_n=CHECKPOINT_EVERY, device="cpu"
    )
    before = load()[0]
    with tempfile.TemporaryDirectory() as run:
        train(config, run, settings, {"windows": windows})
        evaluated = _evaluation_s(Path(run), config)
    loop, alone = (
        [[one / given.steps for one in part] for part in zip(*rows, strict=True)]
        for rows in (windows.loop, windows.alone)
    )
    step, own = statistics.mean(alone[0]), statistics.mean(loop[0])
    step_cpu, own_cpu = statistics.mean(alone[1]), statistics.mean(loop[1])
    cores = torch.get_num_threads()
    return {
        "images a second": given.batch / own,
        "bare steps' images a second": given.batch / step,
        "rate over bare steps'": step / own,
        "the same in the best window": max(a / b for a, b in zip(alone[0], loop[0], strict=True)),
        "step, processor s": step_cpu,
        "preparing a batch, processor s": preparing,
        "preparing over a step, processor": preparing / step_cpu,
        "loop, processor s": own_cpu,
        "processor time of step and preparing over the loop's": (step_cpu + preparing) / own_cpu,
        "rate over the limit of both": (step + preparing / cores) / own,
        "evaluation, s an image": evaluated / EVALUATED,
        "load of a core, before and after": [round(before, 2), round(load()[0], 2)],
        "windows, s a step": [[round(one, 4) for one in rows] for rows in (loop[0], alone[0])],
    }


def _evaluation_s(run: Path, config: Any) -> float:
    from boxwright.evaluation.evaluate import evaluate_on_reader

    detector = bw.restore_detector(run)[0].optimize()
    taken = []
    for _ in range(2):  # the first allocates
        began = time.perf_counter()
        evaluate_on_reader(config, detector)
        taken.append(time.perf_counter() - began)
    return min(taken)


def first_step_s(config: Path) -> dict[str, float]:
    """Return seconds from the start of `boxwright train` to the end of its first step, and the processor's."""
    found: dict[str, float] = {}
    for _ in range(2):  # the first fills caches
        with tempfile.TemporaryDirectory() as run:
            words = [sys.executable, "-m", "boxwright", "train", "--pipeline_config_path", str(config)]
            words += ["--model_dir", run, "--log_every_n", "1", "--workers", "0", "--no_evaluate"]
            began = time.perf_counter()
            child = subprocess.Popen(words, stdout=subprocess.DEVNULL)
            log = Path(run) / "metrics.jsonl"
            while child.poll() is None and not (log.is_file() and "total_loss" in log.read_text()):
                time.sleep(0.02)
            found["first step, s"] = time.perf_counter() - began
            fields = Path(f"/proc/{child.pid}/stat").read_text().rpartition(")")[2].split()
            found["first step, processor s"] = (int(fields[11]) + int(fields[12])) / _TICKS
            child.kill()
            child.wait()
    return found


def main() -> None:
    """Measure, print, write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--windows", type=int, default=5)
    parser.add_argument("--steps", type=int, default=20, help="in a window")
    parser.add_argument("--batch", type=int, default=8)
    parser.add_argument("--only", nargs="+", choices=list(READERS), default=list(READERS))
    parser.add_argument("--workers", type=int, nargs="+", default=[0, 1])
    parser.add_argument("--json", type=Path, help="read, and written after each row")
    parser.add_argument("--one", nargs=2, metavar=("READER", "WORKERS"), help=argparse.SUPPRESS)
    parser.add_argument("--data", type=Path, help="folder of the made-up images, kept; without, a temporary one")
    given = parser.parse_args()
    if given.one:
        print(json.dumps(measure(given.data, given.one[0], int(given.one[1]), given)))
        return
    results = json.loads(given.json.read_text()) if given.json and given.json.is_file() else {"rows": {}}
    results |= {**processor(), "torch": torch.__version__, "threads": torch.get_num_threads(), "batch": given.batch}
    with tempfile.TemporaryDirectory() as folder:
        data = (given.data or Path(folder)).resolve()
        write_data(data)
        for reader in given.only:
            for workers in given.workers:
                words = [sys.executable, __file__, "--one", reader, str(workers), "--data", str(data)]
                words += [f"--{name}={getattr(given, name)}" for name in ("windows", "steps", "batch")]
                done = subprocess.run(words, stdout=subprocess.PIPE, text=True, check=True)
                row = json.loads(done.stdout.splitlines()[-1])
                _note(results, f"{reader}, {workers} workers", row, given.json)
            _note(results, f"{reader}, start", first_step_s(configuration(data, reader, given.batch, 9)), given.json)


def _note(results: dict[str, Any], title: str, row: dict[str, Any], path: Path | None) -> None:
    results["rows"][title] = row
    print(title, *(f"  {key}: {value:.3f}" for key, value in row.items() if isinstance(value, float)), sep="\n")
    if path:
        path.write_text(json.dumps(results, indent=1) + "\n")


if __name__ == "__main__":
    main()
