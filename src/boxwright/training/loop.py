"""A run under way: step, log, checkpoint, evaluate; and where the time of a step goes."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Generator, Iterator
from contextlib import closing, nullcontext, suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

import torch
from torch.profiler import ProfilerActivity, profile, record_function

from boxwright.base.distributed import Processes
from boxwright.base.errors import BoxwrightError, CheckpointError, ConfigError, DataError, TrainingError
from boxwright.base.files import is_file, write_whole
from boxwright.config.load import dump_message
from boxwright.data.batch import Batch
from boxwright.data.loader import BatchStream
from boxwright.nn.criteria.criterion import TOTAL
from boxwright.pipeline import messages as m
from boxwright.pipeline.training import ENDLESS, TrainingPlan
from boxwright.training.background_writer import BackgroundWriter, Content, contribute, copied
from boxwright.training.evaluations import Evaluations
from boxwright.training.examples import on_device
from boxwright.training.forensics import dump_step
from boxwright.training.log import TrainingLog
from boxwright.training.losses import graphed
from boxwright.training.restart import is_restart_due, read_restart
from boxwright.training.settings import RunSettings
from boxwright.training.state import Selection, TrainingState
from boxwright.training.step import Learner, NotFiniteError, StepReport, check_step
from boxwright.training.step_log import StepLog
from boxwright.training.stop import RunEnd, StopReason, agreed_batches
from boxwright.weights.store import CheckpointStore

STAGES = ("data", "forward", "assignment", "losses", "backward", "optimizer")
# The first steps create the optimizer's slots, let cuDNN try algorithms and use up what workers have prepared.
_WARM, _MEASURED = 5, 10


@dataclass(frozen=True)
class Profile:
    """Where time goes.

    Attributes:
        shares: Of each of `STAGES` and of the rest, together 1. On a GPU they are of the time in which the CPU launches
            work and waits; what the device does is in the trace.
        ready: How many batches lay ready each time that one was wanted.
        gpu_memory: The most bytes of the GPU that tensors took at a time; 0 on the CPU.
    """

    shares: dict[str, float]
    seconds: float
    ready: list[int]
    gpu_memory: int = 0


def profile_steps(
    batches: Iterator[Batch],
    learn: Callable[[Batch], object],
    ready: Callable[[], int],
    folder: Path | None,
    device: torch.device,
) -> Profile:
    """Take some steps, measure ten of them, write a trace.

    Args:
        batches: What to learn from; data are waited for inside the measurement.
        folder: Where `trace.json` goes (for chrome://tracing or Perfetto), if anywhere.

    Raises:
        TrainingError: Where the data end before the measurement does.
    """
    cuda = device.type == "cuda"
    for _ in range(_WARM):
        learn(_next(batches))
    depths: list[int] = []
    activities = [ProfilerActivity.CPU, *([ProfilerActivity.CUDA] if cuda else [])]
    with profile(activities=activities) as profiler:
        began = time.perf_counter()
        for _ in range(_MEASURED):
            depths.append(ready())
            with record_function("data"):
                batch = _next(batches)
            learn(batch)
        if cuda:
            torch.cuda.synchronize(device)
        seconds = (time.perf_counter() - began) / _MEASURED
    if folder is not None:
        folder.mkdir(parents=True, exist_ok=True)
        profiler.export_chrome_trace(str(folder / "trace.json"))
    spent: dict[str, float] = {}
    for event in profiler.key_averages():
        spent[event.key] = max(spent.get(event.key, 0.0), event.cpu_time_total / 1e6 / _MEASURED)
    shares = {stage: spent.get(stage, 0.0) / seconds for stage in STAGES}
    # The criterion's range holds that of the assignment, and the penalties on kernels.
    shares["losses"] = max(spent.get("criterion", 0.0) / seconds - shares["assignment"], 0.0)
    shares["rest"] = max(1 - sum(shares.values()), 0.0)
    return Profile(shares, seconds, depths, torch.cuda.max_memory_allocated(device) if cuda else 0)


def described(profile: Profile, batch_size: int, most_ready: int) -> list[str]:
    """Return a profile in lines.

    Args:
        most_ready: How many batches workers make ahead; 0 without workers.
    """
    lines = [f"{profile.seconds * 1000:.0f} ms a step, {batch_size / profile.seconds:.1f} images/s; of that"]
    lines += [f"  {name:<12}{profile.shares[name]:6.1%}" for name in (*STAGES, "rest")]
    lines.append(_data_ahead(profile.ready, most_ready))
    if profile.gpu_memory:
        lines.append(f"peak memory of the GPU: {profile.gpu_memory / 2**30:.2f} GiB")
    return lines


def _data_ahead(ready: list[int], most: int) -> str:
    """Say whether the workers keep up."""
    if not most:
        return "no workers: each batch is read when it is wanted (--workers)"
    empty = ready.count(0)
    verdict = f"; {empty} of {len(ready)} steps waited: more workers would help" if empty else ""
    return f"batches ready when one was wanted: {min(ready)} to {max(ready)} of {most}{verdict}"


def _next(batches: Iterator[Batch]) -> Batch:
    batch = next(batches, None)
    if batch is None:
        raise TrainingError(f"the data ended before {_WARM + _MEASURED} steps; profile with more epochs")
    return batch


# After so many the weights or the data are at fault, which no further step would mend.
_MOST_SKIPPED_IN_A_ROW = 20


@dataclass
class _Progress:
    """What the loop counts on its way; nothing of it is needed to resume."""

    began: float = field(default_factory=time.monotonic)
    saved: int = -1
    skipped_in_a_row: int = 0
    last: StepReport | None = None
    ending: StopReason = StopReason.NOT_YET
    wrote_config: bool = False


@dataclass
class Loop:
    """A run under way."""

    config: m.TrainEvalPipelineConfig
    plan: TrainingPlan
    settings: RunSettings
    state: TrainingState
    store: CheckpointStore
    batches: BatchStream
    log: TrainingLog | None
    evaluations: Evaluations
    processes: Processes
    stop_requested: Callable[[], int]
    writer: BackgroundWriter

    def __post_init__(self) -> None:
        self.learner = Learner(self.state, self.plan, self.processes)
        if self.settings.shard:
            self.learner.shard()
        if self.settings.cuda_graphs:
            self.learner.module = graphed(self.learner.losses, self.plan)
        self.device = next(self.state.detector.parameters()).device
        # A run that starts at 0 has no checkpoint yet: -1, so that --checkpoint_at_start saves one.
        self.progress = _Progress(saved=self.state.step or -1)
        self.step_log = StepLog(self.log, self.state, self.plan, self.settings, self.processes)

    def loop(self) -> RunEnd:
        """Step until the configured number, or until there is a reason to end earlier; return why it ended."""
        state, total = self.state, self.plan.num_steps
        if state.step >= total:
            self.processes.log.info(f"already trained for {state.step} of {total} steps")
            if state.selection.evaluated < state.step:
                self._evaluate()  # which a kill, or Ctrl-C, prevented
                self._agree_on_selection()
            return self._end_of_run()
        self._start()
        with closing(self._incoming()) as batches:
            while not (state.step >= total or state.selection.exhausted) and (batch := next(batches, None)):
                report = self._step(batch)
                self._write_config()
                self.writer.poll()
                self._collect_when_ready()
                self.step_log.log_step(report, batch)
                # Saved first: a kill during the evaluation costs no steps, and the resumed run evaluates what it
                # resumed from.
                if self._is_due(self.settings.checkpoint_every_n):
                    self._save()
                if self._is_due(self._evaluate_every):
                    self._evaluate()
        self._finish()
        return self._end_of_run()

    def _end_of_run(self) -> RunEnd:
        """Return how far the run came; a signal counts however late, as the last evaluation is left out then."""
        # Of several processes, only some may have received it.
        if number := self.processes.largest(self.stop_requested()):
            return RunEnd(self.state.step, StopReason.INTERRUPTED, number)
        complete = self.state.step >= self.plan.num_steps or self.state.selection.exhausted
        return RunEnd(self.state.step, StopReason.NOT_YET if complete else self.progress.ending)

    def profile(self) -> None:
        """Measure some steps and log where their time goes; nothing is saved."""
        self.state.detector.train()
        folder = self.store.folder / "profile"
        out = folder if self.processes.leads else None
        with closing(self._incoming()) as batches:
            profile = profile_steps(batches, self.learner.step, lambda: self.batches.ready, out, self.device)
        for line in described(profile, self.plan.stream.batch_size, self.batches.most_ready):
            self.processes.log.info(line)
        self.processes.log.info(f"trace: {folder / 'trace.json'}")

    def save_before_stopping(self, *, at_once: bool) -> None:
        """Keep the steps since the last checkpoint when an error ends the run; weights are those before it.

        Args:
            at_once: Whether the user has asked not to wait, for metrics either.
        """
        self.writer.wait()
        if not self.processes.leads or (at_once and self.evaluations.pending and not self.evaluations.ready):
            return  # a checkpoint has to include the evaluation; the one before is resumed from
        try:
            self._collect_evaluation()
        except CheckpointError:
            raise
        except BoxwrightError:
            pass  # the error at hand is the one to report
        # Weights that have diverged are not worth resuming from.
        if not self.state.updating and not self.state.divergence.diverged:
            with suppress(NotFiniteError):
                check_step(self.progress.last, self.state)
            path = self.store.folder / f"ckpt-{self.state.step}.pt"
            if self.state.step and not path.exists() and not self.settings.shard:
                self._save_newest()  # sharded weights are partly in other processes, which may be gone
        self.writer.wait()

    def _start(self) -> None:
        """Make the evaluation that a kill prevented; log which weights learn."""
        state = self.state
        self._log_trainable()
        if self.plan.num_steps == ENDLESS:
            self.processes.log.info("train_config.num_steps is not set: training lasts until it is stopped")
        if state.step and state.step % self._evaluate_every == 0 and state.selection.evaluated < state.step:
            self._evaluate()
        if self.settings.checkpoint_at_start and not state.step and not (self.store.folder / "ckpt-0.pt").exists():
            self._save()
            self._evaluate()
        state.detector.train()
        self.step_log.restart_clock()

    @property
    def _evaluate_every(self) -> int:
        return self.settings.evaluate_every_n or self.settings.checkpoint_every_n

    def _incoming(self) -> Generator[Batch]:
        """Hand out batches on the device, until all processes agree to end."""
        agreed = agreed_batches(self.batches.polled(), self._reason_to_end, self.processes, self._end)
        return on_device(agreed, self.device)

    def _reason_to_end(self) -> StopReason:
        if self.stop_requested():
            return StopReason.INTERRUPTED
        limit = self.settings.max_seconds
        if 0 < limit <= time.monotonic() - self.progress.began:
            return StopReason.TIME_UP
        return StopReason.NOT_YET

    def _end(self, ending: StopReason) -> None:
        self.progress.ending = ending

    def _step(self, batch: Batch) -> StepReport | None:
        """Take a step; None where it was not finite, and left out."""
        self._restart_if_due()
        if self.state.step in self.learner.trainable.changes():
            self._log_trainable()
        while True:
            every = self.settings.summarize_every_n
            summarized = bool(every) and self.state.step % every == 0
            describe, wait = summarized and self.processes.leads, summarized or self._waits()
            try:
                report = self.learner.step(batch, self.progress.last, describe=describe, wait=wait)
            except NotFiniteError as error:
                self._leave_out(error)
                if error.batch is batch:
                    return None
                continue  # it was the step before: this batch has still to be learned from
            except DataError as error:  # of a loss, which does not know where its objects come from
                raise DataError(f"{self.batches.origin(batch)}: {error}") from None
            self._observe_loss(self.progress.last, report)
            self.progress.last, self.progress.skipped_in_a_row = report, 0
            return report

    def _restart_if_due(self) -> None:
        """Go back to the best state where that is due; a run without an evaluation goes on as it is."""
        if self.plan.restart_step and self.state.step == self.plan.restart_step:
            self._agree_on_selection()
        if not is_restart_due(self.state, self.plan.restart_step):
            return
        self.writer.wait()
        with self.step_log.clock_stopped():
            content = self.processes.from_leader(lambda: read_restart(self.state, self.store))
        if content is None:
            self.processes.log.warning(f"step {self.state.step}: nothing was evaluated yet to restart from")
            return
        self.state.restart(content)
        best, step = content["step"], self.state.step
        self.processes.log.info(f"step {step}: training goes on from the best state, of step {best}")

    def _observe_loss(self, previous: StepReport | None, report: StepReport) -> None:
        """Warn, or end the run, if it has diverged; only of steps whose numbers need not be waited for any more."""
        known = [previous] if previous is not None and previous.batch is not None else []
        for each in [*known, *([report] if report.batch is None else [])]:
            if message := self.state.divergence.observe(each.before.step + 1, each.losses[TOTAL]):
                if self.settings.stop_on_divergence:
                    raise TrainingError(f"{message}; the newest checkpoint is from before")
                self.processes.log.warning(f"{message}; --stop_on_divergence ends such a run")

    def _waits(self) -> bool:
        """Return whether the next step must be known to be finite at once; on a GPU most need not."""
        step, settings = self.state.step + 1, self.settings
        intervals = (settings.log_every_n, settings.checkpoint_every_n, self._evaluate_every)
        # On a CPU there is nothing to wait for; what is logged, saved or evaluated is needed at once anyway.
        return (
            self.device.type == "cpu"
            or self.progress.skipped_in_a_row > 0
            or step in (1, self.plan.num_steps, self.plan.restart_step)
            or any(step % every == 0 for every in intervals)
        )

    def _leave_out(self, error: NotFiniteError) -> None:
        """Dump a step that was not finite; then leave it out or end."""
        self.progress.last = None
        if not self.settings.skip_not_finite and self.state.step:
            self._save()
        batches = self.processes.gather(error.batch.to("cpu"))
        # The others wait, so that nothing ends the one that writes before it is done.
        given = self.store.folder, self.state, self._content(), batches, self.config, error
        where = self.processes.from_leader(lambda: dump_step(*given))
        self.progress.skipped_in_a_row += 1
        if not self.settings.skip_not_finite:
            raise TrainingError(where) from None
        if self.progress.skipped_in_a_row >= _MOST_SKIPPED_IN_A_ROW:
            raise TrainingError(f"{where}; {_MOST_SKIPPED_IN_A_ROW} steps in a row were left out") from None
        self.processes.log.info(f"{where}; the step is skipped")
        # Counted all the same: the schedule and the stream of data go on as if the step had been taken.
        self.state.advance(self.plan.stream.batch_size, passes=0, averaged=False)

    def _is_due(self, every: int) -> bool:
        # The last step is saved and evaluated by `_finish`, for whatever reason it is the last.
        return self.state.step % every == 0 and self.state.step < self.plan.num_steps

    def _save(self) -> None:
        """Write the state of this step, the evaluations before it included, while the run goes on."""
        if self.progress.saved != self.state.step:
            self._agree_on_selection()
            self._save_newest()
        self.progress.saved = self.state.step

    def _write_config(self) -> None:
        """Write the configuration into the run's folder once it had an effect: a failed command keeps the last."""
        if self.processes.leads and not self.progress.wrote_config:
            write_whole(self.store.folder / "pipeline.config", dump_message(self.config))
        self.progress.wrote_config = True

    def _save_newest(self) -> None:
        self._write_config()
        save = partial(self.store.save, self.state.step, began=self.state.began)
        with self.step_log.clock_stopped():
            content = self._content()
            if self.processes.leads:
                self.writer.write(save, content, "saved {path}")

    def _content(self) -> Content:
        """Return what a checkpoint of this step holds, on the CPU; nothing in processes that do not write it."""
        if self.processes.leads:
            return copied(self.state.content(dump_message(self.config)))
        if self.settings.shard:
            contribute(self.state.content(""))
        return {}

    def _evaluate(self) -> None:
        """Run the network over the data of every reader; metrics are collected when they have been computed."""
        if not self.evaluations.sets:
            return
        self._write_config()
        self._agree_on_selection()
        with self.step_log.clock_stopped():
            known = self.evaluations.start(self.learner.losses, self._content, self.stop_requested)
        # Patience must end the run at the same step whatever metrics take, and a restart come at the same step.
        restarts = 0 < self.plan.restart_step <= self.state.step
        if known or self.settings.patience or restarts:
            self._agree_on_selection()

    def _collect_when_ready(self) -> None:
        """Collect an evaluation between two steps; several processes are told of its errors when they agree on it."""
        if self.evaluations.ready:
            with suppress(ConfigError, DataError) if self.processes.count > 1 else nullcontext():
                self._collect_evaluation()

    def _collect_evaluation(self) -> Selection:
        """Return the selection after the pending evaluation; write the best, and its step's checkpoint again."""
        with self.step_log.clock_stopped():
            evaluated = self.evaluations.collect()
            if evaluated is not None and evaluated.best:
                self.writer.write(partial(self.store.save_best, evaluated.step), evaluated.content)
            # It was saved before its evaluation; with it, a resumed run neither repeats nor forgets the evaluation.
            if evaluated is not None and self.progress.saved == evaluated.step:
                self.writer.write(partial(self.store.save, evaluated.step, began=self.state.began), evaluated.content)
        return self.state.selection

    def _agree_on_selection(self) -> None:
        """Let all processes know the selection after the pending evaluation."""
        if self.evaluations.sets:
            self.state.selection = self.processes.from_leader(self._collect_evaluation)

    def _finish(self) -> None:
        """Log, save and evaluate what the loop has not; log why it ended, and how fast it was."""
        progress, state = self.progress, self.state
        try:
            check_step(progress.last, state)
        except NotFiniteError as error:
            self._leave_out(error)
        if progress.last is not None:
            self.step_log.log_numbers(progress.last)
        self._save()
        self._agree_on_selection()
        if progress.ending is not StopReason.INTERRUPTED and state.selection.evaluated < state.step:
            self._evaluate()
        self._agree_on_selection()
        self.writer.wait()
        _log_best(state.selection, self.store.best, self.processes.log)
        self.step_log.write_summary(self.store.folder, progress.last)
        if state.step < self.plan.num_steps:
            self.processes.log.info(_why_it_ended(progress.ending, state, self.plan.num_steps))

    def _log_trainable(self) -> None:
        text = self.learner.trainable.report(self.state.step)
        if text:
            self.processes.log.info(text)
        for line in self.state.groups:
            self.processes.log.info(line)


def _log_best(selection: Selection, path: Path, log: logging.Logger) -> None:
    """Log which checkpoint is the best, if there is one."""
    if selection.best is not None and is_file(path):
        chosen = f"{selection.metric} {selection.best:.4f} at step {selection.best_step}"
        log.info(f"best checkpoint: {path}, {chosen}")


_REASONS = {
    StopReason.DATA_AT_END: "the data is at its end",
    StopReason.TIME_UP: "the time is up",
    StopReason.INTERRUPTED: "interrupted",
}


def _why_it_ended(ending: StopReason, state: TrainingState, num_steps: int) -> str:
    """Return why a run ended before its last step, and whether it can be resumed."""
    chosen, why = state.selection, _REASONS.get(ending, "")
    if chosen.exhausted:
        why = f"no better {chosen.metric} in {chosen.waited} evaluations, the best at step {chosen.best_step}"
    of_all = "" if num_steps == ENDLESS else f" of {num_steps}"
    resumable = ending in (StopReason.TIME_UP, StopReason.INTERRUPTED) and not chosen.exhausted
    more = "; run the same command again to resume" if resumable else ""
    return f"{why}: stopped after {state.step}{of_all} steps{more}"
