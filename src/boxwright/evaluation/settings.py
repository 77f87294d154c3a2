"""Settings of evaluations outside the configuration."""

from __future__ import annotations

from dataclasses import dataclass

from boxwright.base.settings import name_device, setting

_WATCH = "Following a run"


@dataclass(frozen=True, kw_only=True)
class EvaluationSettings:
    """Settings of an evaluation; `boxwright evaluate` has an option for each."""

    eval_index: int = setting(
        0, "Index of the configuration's eval_input_reader.", least=0, flags=("--eval_index", "--reader")
    )
    class_agnostic: bool = setting(False, "Count all classes as one: are objects found at all?")
    multi_scale: str = setting("", "Detect at many sizes and in mirrored images, and vote: as refinedet320-voc.")
    sample_1_of_n_eval_examples: int | None = setting(None, "Evaluate every nth image.", least=1)
    eval_on_train_data: bool = setting(
        False, "Evaluate on the training data, by default every 5th image: does it learn at all?"
    )
    device: str = setting(
        "auto",
        "cpu, cuda, one GPU as cuda:1, mps, or auto for cuda if available; runtimes have others, such as tensorrt.",
    )
    runtime: str = setting(
        "auto",
        "torch, onnxruntime, openvino; auto: that of the model, which is PyTorch unless it is an exported file.",
    )
    tf32: bool = setting(False, "On a GPU, round float32 matrix products to TF32 too, as convolutions are by default.")
    precision: str = setting("float32", "float32, bfloat16, float16, or fastest: the first two measured.")
    compile: bool = setting(False, "Compile the network, which takes a minute or more.")
    cuda_graphs: bool = setting(
        False, "On a GPU, capture the detector as one launch; inputs of one size. Losses are not computed."
    )
    allow_edited: bool = setting(False, "Open an exported file that was changed after `boxwright export` wrote it.")
    workers: int = setting(1, "Processes that read and decode images.", least=0)
    engine: str = setting("", "Share the images: local, among processes here; ray, over a cluster (RAY_ADDRESS).")
    shares: int = setting(2, "With --engine, the number of processes.", least=1)

    def __post_init__(self) -> None:
        name_device(self)


@dataclass(frozen=True, kw_only=True)
class WatchSettings:
    """Whether and how to wait for checkpoints, as in TF2; times in seconds."""

    watch: bool = setting(
        False, "Wait for checkpoints and evaluate each until the last step; writes to TensorBoard.", _WATCH
    )
    wait_interval: float = setting(300.0, "Minimum seconds between the starts of two evaluations.", _WATCH, 0)
    timeout: float = setting(
        3600.0,
        "Seconds without a new checkpoint after which to stop; 0 to evaluate the existing one and stop.",
        _WATCH,
        0,
        flags=("--timeout", "--eval_timeout"),
    )
