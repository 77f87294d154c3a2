"""What an evaluation needs that a configuration does not say."""

from __future__ import annotations

from dataclasses import dataclass

from boxwright.base.settings import setting

_WATCH = "Following a run"


@dataclass(frozen=True, kw_only=True)
class EvaluationSettings:
    """What is evaluated, and where; `boxwright evaluate` has an option for each."""

    eval_index: int = setting(
        0, "Which of the configuration's eval_input_readers.", least=0, flags=("--eval_index", "--reader")
    )
    class_agnostic: bool = setting(False, "Count all classes as one: are objects found at all?")
    multi_scale: str = setting("", "Look at many sizes and mirror images, and vote: as refinedet320-voc.")
    sample_1_of_n_eval_examples: int | None = setting(None, "Evaluate every nth image.", least=1)
    eval_on_train_data: bool = setting(
        False, "Evaluate on the training data, every 5th image unless told otherwise: does it learn at all?"
    )
    device: str = setting("auto", "cpu, cuda, one GPU as cuda:1, or auto for a GPU where there is one.")
    tf32: bool = setting(False, "Let a GPU round factors of float32 products to 10 bits.")
    precision: str = setting("float32", "float32, bfloat16, or fastest: whichever is measured to be.")
    compile: bool = setting(False, "Compile the network; a minute or more first.")
    allow_edited: bool = setting(False, "Open an exported file that is not as `boxwright export` wrote it.")
    workers: int = setting(1, "Processes that read and decode images.", least=0)
    engine: str = setting("", "Share the images: local, among processes here; ray, over a cluster (RAY_ADDRESS).")
    shares: int = setting(2, "With --engine, among how many.", least=1)


@dataclass(frozen=True, kw_only=True)
class WatchSettings:
    """How checkpoints are waited for, with TF2's meanings; times in seconds."""

    wait_interval: float = setting(300.0, "Least seconds between the beginnings of two evaluations.", _WATCH, 0)
    timeout: float = setting(
        3600.0,
        "Seconds without a new checkpoint after which to end; 0 to evaluate what is there and end.",
        _WATCH,
        0,
        flags=("--timeout", "--eval_timeout"),
    )
