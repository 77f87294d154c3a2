"""What a run's log has of its steps: losses, speed, pictures, and the records that were left out.

`performance_summary.json` says how fast a run was.
"""

from __future__ import annotations

import json
import statistics
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from boxwright.base.distributed import Processes
from boxwright.base.files import write_whole
from boxwright.data.batch import Batch
from boxwright.nn.criteria.criterion import TOTAL, Description
from boxwright.pipeline.training import TrainingPlan
from boxwright.training.log import Described, Gradients, Inputs, Scalars, TrainingLog, Variables
from boxwright.training.settings import RunSettings
from boxwright.training.state import TrainingState
from boxwright.training.step import StepReport


class StepLog:
    """Logs the steps of a run, and measures how fast they are."""

    def __init__(
        self,
        log: TrainingLog | None,
        state: TrainingState,
        plan: TrainingPlan,
        settings: RunSettings,
        processes: Processes,
    ) -> None:
        """Start the clock.

        Args:
            log: None in processes that do not write.
        """
        self._log, self._state, self._plan, self._settings, self._processes = log, state, plan, settings, processes
        self._speeds: list[float] = []
        self._problems: list[str] = []
        self._bad_records, self._logged_step = 0, -1
        self.restart_clock()

    def restart_clock(self) -> None:
        """Measure the speed from this step on."""
        self._clock, self._since = time.monotonic(), self._state.step

    @contextmanager
    def clock_stopped(self) -> Iterator[None]:
        """Keep what is not training out of the speed."""
        left = time.monotonic()
        yield
        self._clock += time.monotonic() - left

    def log_step(self, report: StepReport | None, batch: Batch) -> None:
        """Log a step as far as it is to be logged; None for one that was left out."""
        self._problems += batch.problems
        if report is None:
            return
        step = self._state.step
        # Before pictures, which take a while to draw: who starts a run waits for its first numbers.
        if step % self._settings.log_every_n == 0 or step == 1:
            self.log_numbers(report)
        if self._log is not None and report.description is not None:
            with self.clock_stopped():
                self._describe(self._log, report, report.description, batch)

    def _describe(self, log: TrainingLog, report: StepReport, description: Description, batch: Batch) -> None:
        step, parameters = self._state.step, list(self._state.detector.network.named_parameters())
        log.tell(step, Described(description))
        log.tell(step, Inputs(batch, self._state.detector.categories))
        if self._plan.summarize_gradients and not report.skipped:
            gradients = {name: p.grad.float().cpu().numpy() for name, p in parameters if p.grad is not None}
            log.tell(step, Gradients(gradients))
        if self._settings.summarize_variables:
            log.tell(step, Variables({name: p.detach().float().cpu().numpy() for name, p in parameters}))

    def log_numbers(self, report: StepReport) -> None:
        """Log losses, rate, norm and speed, unless those of this step are logged already."""
        step = self._state.step
        if self._logged_step == step:
            return
        speed = (step - self._since) / max(time.monotonic() - self._clock, 1e-9)
        self._speeds.append(speed)
        values = {**report.losses, "learning_rate": report.rate, "global_norm/gradient_norm": report.gradient_norm}
        if self._log is not None:
            self._log.tell(step, Scalars({**values, "steps_per_sec": speed}))
        self._log_bad_records()
        self._logged_step = step
        self.restart_clock()

    def write_summary(self, folder: Path, last: StepReport | None) -> None:
        """Write what TF's `performance_summary_exporter` is given; nothing where no speed was measured."""
        if not (self._processes.leads and self._speeds and last):
            return
        mean = statistics.fmean(self._speeds)
        summary = {
            "metrics": {
                "steps_per_sec": mean,
                "steps_per_sec_p50": statistics.median(self._speeds),
                "steps_per_sec_max": max(self._speeds),
                "last_batch_loss": last.losses[TOTAL],
            },
            "mixed_precision": {"float32": "fp32", "bfloat16": "bf16", "float16": "fp16"}[self._plan.precision],
            "images_per_sec": mean * self._plan.stream.batch_size,
            "processes": self._processes.count,
        }
        write_whole(folder / "performance_summary.json", json.dumps(summary, indent=2) + "\n")

    def _log_bad_records(self) -> None:
        """Name the records that were left out, in whichever process."""
        if not self._settings.skip_bad_records:
            return
        problems = [text for texts in self._processes.gather(self._problems) for text in texts]
        self._problems = []
        for text in problems:
            self._bad_records += 1
            self._processes.log.info(f"left out ({self._bad_records} so far): {text}")
