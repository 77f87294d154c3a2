"""What a run needs that a configuration does not say."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, TypedDict

from boxwright.base.errors import TrainingError
from boxwright.base.settings import name_device, setting
from boxwright.base.threads import MOST_THREADS

if TYPE_CHECKING:
    from boxwright.base.settings import AnyDevice

# Beyond these and NumPy's and torch's generators disagree on what a seed is.
_SEEDS = 2**63
EVENT_TAGS = ("tf2", "tf1")
PRECISIONS = ("float32", "bfloat16", "float16")


_LOOP, _EVALUATION, _SPEED, _SAFETY = "Loop", "Evaluation during training", "Speed", "Safety"


class RunOptions(TypedDict, total=False):
    """The fields of `RunSettings` as keywords of `boxwright.train`, for type checkers and editors."""

    checkpoint_every_n: int
    checkpoint_at_start: bool
    max_to_keep: int
    log_every_n: int
    max_seconds: float
    seed: int | None
    event_tags: str
    summarize_variables: bool
    track: tuple[str, ...]
    evaluate: bool
    evaluate_every_n: int
    best_metric: str
    patience: int
    workers: int
    cache: bool
    threads: int
    precision: str
    compile: bool
    cuda_graphs: bool
    shard: bool
    recompute: bool
    tf32: bool
    profile: bool
    device: AnyDevice
    data_timeout: float
    skip_bad_records: bool
    preflight: bool
    skip_not_finite: bool
    stop_on_divergence: bool
    accept_changes: bool
    summarize_every_n: int


@dataclass(frozen=True, kw_only=True)
class RunSettings:
    """What a run needs that a configuration does not say; `boxwright train` has an option for each.

    Attributes:
        summarize_every_n: Steps between pictures of losses and inputs in the log; 0 for none.
    """

    checkpoint_every_n: int = setting(1000, "Steps between checkpoints; the last step always gets one.", _LOOP, 1)
    checkpoint_at_start: bool = setting(
        False, "Save a checkpoint at step 0 and evaluate it, so that a run can be compared with its start.", _LOOP
    )
    max_to_keep: int = setting(5, "Number of newest checkpoints to keep, besides best.pt.", _LOOP, 1)
    log_every_n: int = setting(20, "Steps between log lines.", _LOOP, 1)
    max_seconds: float = setting(0.0, "Save and stop after this many seconds of training; 0 for no limit.", _LOOP, 0)
    seed: int | None = setting(
        None, "Random seed of initial weights, order and augmentation; default: the run's own, at first 0.", _LOOP
    )
    event_tags: str = setting("tf2", "Names of TensorBoard's tags: tf2, or tf1 (Losses/TotalLoss).", _LOOP)
    summarize_variables: bool = setting(
        False, "Log a histogram of each variable, as ModelVars/NAME, with the pictures of losses.", _LOOP
    )
    track: tuple[str, ...] = setting((), "Log to wandb or mlflow too (pip install 'boxwright[wandb]').", _LOOP)
    evaluate: bool = setting(True, "Evaluate, if the configuration has an eval_input_reader.", _EVALUATION)
    evaluate_every_n: int = setting(0, "Steps between evaluations; 0 for one at each checkpoint.", _EVALUATION, 0)
    best_metric: str = setting(
        "",
        "Metric that selects best.pt, as DetectionBoxes_Precision/mAP@.50IOU or Loss/total_loss; default: the first.",
        _EVALUATION,
    )
    patience: int = setting(
        0, "Stop after this many evaluations in a row without a better best_metric; 0 for never.", _EVALUATION, 0
    )
    workers: int = setting(1, "Processes that prepare samples.", _SPEED, 0)
    cache: bool = setting(
        False,
        "Keep decoded pictures in a file of the cache folder, from which epochs after the first, and other runs, read.",
        _SPEED,
    )
    threads: int = setting(
        0,
        "CPU threads; 0 for as many as the run began with: OMP_NUM_THREADS, or one per core.",
        _SPEED,
        0,
        MOST_THREADS,
    )
    precision: str = setting(
        "",
        "Precision of the network: float32, bfloat16 or float16. Default: as configured; of presets float32 on a CPU, "
        "and bfloat16 on a GPU where it learns the same (docs/gpu.md).",
        _SPEED,
    )
    compile: bool = setting(False, "Compile the network, which takes a minute: for long runs.", _SPEED)
    cuda_graphs: bool = setting(
        False,
        "Compile network and losses (of two-stage detectors, the first stage) into a CUDA graph; inputs of one size.",
        _SPEED,
    )
    shard: bool = setting(
        False,
        "Shard weights, gradients, averages and optimizer state over torchrun's processes (FSDP2), to save memory.",
        _SPEED,
    )
    recompute: bool = setting(
        False, "Recompute the backbone's feature maps in the backward pass: less memory, a fifth more time.", _SPEED
    )
    tf32: bool = setting(
        False, "On a GPU, round float32 matrix products to TF32 too, as convolutions are by default.", _SPEED
    )
    profile: bool = setting(False, "Profile ten steps: print where the time goes, write a trace, stop.", _SPEED)
    device: str = setting("auto", "cpu, cuda, one GPU as cuda:1, mps, or auto for cuda if available.", _SPEED)
    data_timeout: float = setting(
        600.0, "Seconds without a batch after which workers count as stuck: the run saves and stops.", _SAFETY, 1
    )
    skip_bad_records: bool = setting(False, "Skip samples that cannot be read; the log counts and names them.", _SAFETY)
    preflight: bool = setting(
        True, "Check a few samples first and report what looks wrong; boxwright doctor checks all.", _SAFETY
    )
    skip_not_finite: bool = setting(
        False,
        "Skip a step whose loss or gradient is not finite, instead of stopping; either way it is dumped for replay.",
        _SAFETY,
    )
    stop_on_divergence: bool = setting(
        False,
        "Stop at a loss over a thousand times the median of the last hundred steps, instead of warning.",
        _SAFETY,
    )
    accept_changes: bool = setting(
        False,
        "Resume although the configuration changes what the weights were trained for, such as input size and anchors.",
        _SAFETY,
    )
    summarize_every_n: int = 100

    def __post_init__(self) -> None:
        name_device(self)
        positive = ("checkpoint_every_n", "max_to_keep", "log_every_n", "data_timeout")
        not_negative = ("summarize_every_n", "evaluate_every_n", "patience", "workers", "threads", "max_seconds")
        for name in (*positive, *not_negative):
            if not getattr(self, name) >= (1 if name in positive else 0):
                expected = "at least 1" if name in positive else "0 or more"
                raise TrainingError(f"{name}: expected {expected}, found {getattr(self, name)}")
        if self.threads > MOST_THREADS:
            raise TrainingError(f"threads: expected at most {MOST_THREADS}, found {self.threads}")
        for name, known in (("event_tags", EVENT_TAGS), ("precision", ("", *PRECISIONS))):
            if getattr(self, name) not in known:
                expected = " or ".join(filter(None, known))
                raise TrainingError(f"{name}: expected {expected}, found {getattr(self, name)!r}")
        for name, why in (
            ("recompute", "chooses itself what it computes again"),
            ("shard", "cannot gather its weights"),
        ):
            if getattr(self, name) and (self.compile or self.cuda_graphs):
                raise TrainingError(f"--{name}: a network that is compiled {why}")
        if self.seed is not None and not 0 <= self.seed < _SEEDS:
            raise TrainingError(f"seed: expected 0 to {_SEEDS - 1}, found {self.seed}")
