"""Trial steps, in a process of their own: the memory and time that a configuration takes, and the batch that fits."""

from __future__ import annotations

import copy
import json
import os
import re
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from itertools import cycle, islice
from pathlib import Path

import torch

from boxwright.base.device import is_out_of_memory, set_tf32, usable_device
from boxwright.base.distributed import ALONE
from boxwright.base.errors import ConfigError, TrainingError, first_line
from boxwright.config.load import dump_message
from boxwright.data.batch import Batch, collate
from boxwright.data.loader import TrainingExamples
from boxwright.nn.optimization.schedules import Constant
from boxwright.pipeline import messages as m
from boxwright.pipeline.detector import build_detector
from boxwright.pipeline.input_reader import build_dataset
from boxwright.pipeline.load import load_config
from boxwright.pipeline.messages import TrainEvalPipelineConfig
from boxwright.pipeline.precision import choose_precision
from boxwright.pipeline.training import ENDLESS, TrainingPlan, build_training
from boxwright.runtime.allocator import keep_freed_memory
from boxwright.training.examples import training_examples
from boxwright.training.preflight.records import Finding
from boxwright.training.state import new_state, placed
from boxwright.training.step import Learner, check_step
from boxwright.types import Sample

_FULL = 0.9  # of the memory that there is
_READ_SECONDS = 4.0
_COLD = 8  # samples
_TRIED_SECONDS = 20.0
_TIMED_STEPS, _TIMED_SECONDS = 3, 5.0
_PATIENCE = 300.0
_GIB = 2**30
_ERROR = re.compile(r"^[\w.]*Error: ")
_CGROUP = Path("/sys/fs/cgroup/memory.max")


class OutOfMemoryError(TrainingError):
    """A step of one or two images does not fit."""


@dataclass(frozen=True)
class DryRunReport:
    """What was measured.

    Attributes:
        batches: Sizes of the batches that were learned from, ascending.
        memory: Peak bytes of the process, or of the GPU, up to each.
        available: Bytes that the run may use.
        sample_seconds: What one process takes to read, augment and resize a sample.
        killed: Whether the process was killed in the batch after the last.
        split: The size of a batch that fitted in parts alone; 0 for none.
    """

    device: str
    batches: Sequence[int]
    memory: Sequence[int]
    seconds: Sequence[float]
    available: float
    sample_seconds: float
    killed: bool = False
    split: int = 0
    parts: int = 1

    def fits(self, batch_size: int) -> bool:
        """Tell whether a batch is measured, or predicted, to leave some of the memory free."""
        return self.predicted(self.memory, batch_size) <= _FULL * self.available

    def predicted(self, values: Sequence[float], batch_size: int) -> float:
        """Return a value for a batch size: measured, or along the line through the first two."""
        if batch_size in self.batches:
            return float(values[self.batches.index(batch_size)])
        slope = max((values[1] - values[0]) / (self.batches[1] - self.batches[0]), 0.0)
        return values[1] + slope * (batch_size - self.batches[1])


def check_speed_and_memory(config: m.TrainEvalPipelineConfig, workers: int, device: str = "auto") -> Iterable[Finding]:
    """Yield whether a batch fits into the memory, and whether samples are read as fast as steps take them.

    Args:
        config: The whole configuration; it can be built.
        device: On which it is tried, as for `usable_device`.
    """
    plan = build_training(config)
    size = -(-plan.stream.batch_size // plan.accumulation)
    try:
        dry_run = rehearse(config, device)
    except OutOfMemoryError as error:
        yield Finding("memory", "fatal", str(error), "a smaller image_resizer or network needs less")
        return
    except TrainingError as error:
        yield Finding("training_step", "fatal", str(error), "boxwright train would end so")
        return
    memory = dry_run.predicted(dry_run.memory, size)
    tried = "tried" if size in dry_run.batches else "predicted from batches of 1 and 2"
    room = f"{memory / _GIB:.1f} of {dry_run.available / _GIB:.1f} GiB on the {dry_run.device}"
    text = f"a batch of {size} takes {room} ({tried})"
    if dry_run.device == "CPU":
        text += "; nothing was tried on a GPU"
    if dry_run.split:
        text = f"a batch of {dry_run.split} does not fit on the {dry_run.device} at once"
        yield Finding("memory", "fatal", text, _suggest_parts(-(-dry_run.split // dry_run.parts), plan))
    elif dry_run.killed:
        text = f"the process was killed by a batch of {size}, or ran out of memory"
        yield Finding("memory", "fatal", text, _suggest_smaller(dry_run, plan, size // 2))
    elif memory > dry_run.available and size not in dry_run.batches:
        yield Finding("memory", "fatal", text, _suggest_smaller(dry_run, plan, size - 1))
    elif not dry_run.fits(size):
        yield Finding("memory", "warning", text, _suggest_smaller(dry_run, plan, size - 1))
    else:
        yield Finding("memory", "fine", text)
    step = dry_run.predicted(dry_run.seconds, size) * plan.accumulation
    needed, rate = plan.stream.batch_size / step, max(workers, 1) / dry_run.sample_seconds
    hours = "" if plan.num_steps == ENDLESS else f", {step * plan.num_steps / 3600:.1f} h for {plan.num_steps}"
    text = (
        f"a step learns from {needed:.1f} images/s ({step:.2f} s each{hours}); "
        f"{'a worker prepares' if workers < 2 else f'{workers} workers prepare'} {rate:.1f} images/s"
    )
    if rate < needed:
        cores = os.cpu_count() or 1
        # `needed * sample_seconds` workers would just keep up, with nothing to spare.
        wanted = min(-(-int(needed * dry_run.sample_seconds * 100) // 100) + 1, cores)
        yield Finding("input_speed", "warning", text, f"boxwright train --workers {wanted} ({cores} cores here)")
    else:
        yield Finding("input_speed", "fine", text)


def _suggest_smaller(dry_run: DryRunReport, plan: TrainingPlan, most: int) -> str:
    """Return what to do where a batch is too large, with parts of no more than so many images."""
    fits = 1
    while fits < most and dry_run.fits(fits + 1):
        fits += 1
    return _suggest_parts(fits, plan)


def _suggest_parts(fits: int, plan: TrainingPlan) -> str:
    parts = -(-plan.stream.batch_size // fits)
    return f"train_config.gradient_accumulation_steps: {parts} learns the same in parts of {fits}"


def rehearse(config: m.TrainEvalPipelineConfig, device: str = "auto") -> DryRunReport:
    """Take steps with batches of 1 and 2 and, where that is quick and fits, the whole batch, in a process of its own.

    Args:
        device: On which, as for `usable_device`.

    Raises:
        OutOfMemoryError: Where the process was killed, or said so.
    """
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "pipeline.config"
        chosen, _ = choose_precision(config, usable_device(device))  # as the run will
        path.write_text(dump_message(chosen), encoding="utf-8")
        command = [
            sys.executable,
            # Not the current folder, where a file of the user's could hide a module's name.
            "-P",
            "-m",
            "boxwright.training.rehearsal",
            str(path),
            device,
        ]
        try:
            done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=_PATIENCE)
        except subprocess.TimeoutExpired:
            raise TrainingError(f"two steps of one and two images took more than {_PATIENCE:g} s") from None
    lines = done.stdout.splitlines()
    if done.returncode < 0 and lines:  # killed by a signal, as the kernel does where memory is short, in the last batch
        return replace(DryRunReport(**json.loads(lines[-1])), killed=True)
    if done.returncode < 0:
        raise OutOfMemoryError(f"a process that tried steps of 1 and 2 images was killed (signal {-done.returncode})")
    if done.returncode:
        why = (done.stderr.strip().splitlines() or ["it said nothing"])[-1][:300]
        kind = OutOfMemoryError if "not enough memory" in why else TrainingError
        if lines and kind is OutOfMemoryError:  # smaller batches were measured
            return replace(DryRunReport(**json.loads(lines[-1])), killed=True)
        raise kind(f"a step could not be tried: {_ERROR.sub('', why)}")
    return DryRunReport(**json.loads(lines[-1]))


def _measure(config: m.TrainEvalPipelineConfig, device: torch.device) -> Iterator[DryRunReport]:
    """Yield what is known after each batch from the second on; steps are those of a run."""
    plan = build_training(config)
    dataset = build_dataset(config.train_input_reader, "train_input_reader")
    detector = placed(build_detector(config, dataset.categories), device)
    available = _available(device)
    examples = training_examples(config, dataset, detector, 0, skip_bad=True)
    if examples.sizes is not None:
        examples.resizer, examples.sizes = examples.sizes.largest, None
    samples, read = _read(examples, len(dataset))
    state = new_state(detector, plan)
    detector.train()
    # Weights stay, so that a rate that is too high does not end the trial.
    still = replace(plan, accumulation=1, optimizer=replace(plan.optimizer, schedule=Constant(0.0)))
    learner = Learner(state, still, ALONE)
    dry_run = DryRunReport(f"GPU ({device})" if device.type == "cuda" else "CPU", (), (), (), available, read)
    size = -(-plan.stream.batch_size // plan.accumulation)
    for count in dict.fromkeys((1, 2, size)):
        if count > 2 and (dry_run.predicted(dry_run.seconds, count) > _TRIED_SECONDS or not dry_run.fits(count)):
            break
        seconds = _take_steps(learner, collate(list(islice(cycle(samples), count))), device)
        if state.parts > 1:  # it was learned from in parts, which is another step than was asked for
            if len(dry_run.batches) < 2:
                raise TrainingError(f"not enough memory for a batch of {count} at once")
            yield replace(dry_run, split=count, parts=state.parts)
            return
        on_gpu = device.type == "cuda"
        held = torch.cuda.max_memory_reserved(device) if on_gpu else _read_linux_bytes("/proc/self/status", "VmHWM")
        dry_run = replace(
            dry_run,
            batches=(*dry_run.batches, count),
            seconds=(*dry_run.seconds, seconds),
            memory=(*dry_run.memory, held),
        )
        if len(dry_run.batches) > 1:
            yield dry_run


def _read(examples: TrainingExamples, count: int) -> tuple[list[Sample], float]:
    """Return samples as they are learned from, for some seconds; and how long one takes.

    The first ones are not timed: they open files and load libraries, which took several times as long as the rest.
    """
    samples: list[Sample] = []
    times: list[float] = []
    while len(times) < max(count, 2 * _COLD) and sum(times[1:]) < _READ_SECONDS:
        began = time.perf_counter()
        sample = examples[len(times) // count, len(times) % count]
        times.append(time.perf_counter() - began)
        if not isinstance(sample, Sample):
            raise sample
        samples.append(sample)
    warm = times[_COLD:] or times[-1:]
    return samples, sum(warm) / len(warm)


def _take_steps(learner: Learner, batch: Batch, device: torch.device) -> float:
    """Return the seconds of a step: the median of up to three after the second, as the first makes the slots."""
    batch, wait = batch.to(device), device.type == "cpu"  # as in a run, which on a GPU waits for few steps
    report = learner.step(batch, wait=wait)
    report = learner.step(batch, report, wait=wait)
    times: list[float] = []
    while len(times) < _TIMED_STEPS and sum(times) < _TIMED_SECONDS:
        began = time.perf_counter()
        report = learner.step(batch, report, wait=wait)
        if device.type == "cuda":
            torch.cuda.synchronize(device)
        times.append(time.perf_counter() - began)
    check_step(report, learner.state)
    return statistics.median(times)


def _available(device: torch.device) -> float:
    """Return the bytes that there are on a device for a run, the network that lies there already included."""
    if device.type == "cuda":
        return float(torch.cuda.mem_get_info(device)[0] + torch.cuda.memory_reserved(device))
    return min(
        _read_linux_bytes("/proc/meminfo", "MemAvailable") + _read_linux_bytes("/proc/self/status", "VmRSS"),
        _container_limit(),
    )


def _container_limit() -> float:
    """Return the bytes that a container may hold; infinite where nothing limits them."""
    try:
        return float(_CGROUP.read_text(encoding="utf-8"))
    except (OSError, ValueError):  # no such file, or "max"
        return float("inf")


def _read_linux_bytes(path: str, name: str) -> int:
    """Return a number of bytes that Linux knows."""
    lines = Path(path).read_text(encoding="utf-8").splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith(name)) * 1024


def fitting_batch(
    config: TrainEvalPipelineConfig, most: int, device: str = "auto", *, tried: int = 2
) -> tuple[int, DryRunReport]:
    """Try steps, and return the largest batch that should fit.

    Args:
        device: On which, as for `device.usable_device`.
        tried: The batch that is tried after one and two images, where that should be quick and fit.

    Returns:
        `most`, or the first of its halves, quarters, … that fits; and what was measured.

    Raises:
        TrainingError: Where a step of two images fails, or does not fit.
    """
    trial = copy.deepcopy(config)
    if trial.train_config is None:
        raise ConfigError("train_config is not set; there is no batch to fit")
    trial.train_config.batch_size = max(tried, 2)
    measured = rehearse(trial, device)
    failed = measured.killed or measured.split
    return fitting(measured, max(min(most, tried // 2), 1) if failed else most), measured


def fitting(measured: DryRunReport, most: int) -> int:
    """Return `most`, or the first of its halves, quarters, … that fits; 1 where none does."""
    size = most
    while size > 1 and not measured.fits(size):
        size //= 2
    return size


if __name__ == "__main__":
    set_tf32(products=False)
    keep_freed_memory()  # as `boxwright train` does, whose steps would otherwise take a third longer
    try:
        for measured in _measure(load_config(sys.argv[1]), usable_device(sys.argv[2])):
            print(json.dumps(asdict(measured)), flush=True)  # noqa: T201  # its reader is `rehearse`
    except RuntimeError as error:
        if not is_out_of_memory(error):
            raise
        raise TrainingError(f"not enough memory: {first_line(error)}") from None
