"""Settings of benchmarks."""

from __future__ import annotations

from dataclasses import dataclass

from boxwright.base.errors import ConfigError
from boxwright.base.settings import name_device, setting

_PRECISIONS = ("float32", "bfloat16")


@dataclass(frozen=True, kw_only=True)
class BenchmarkSettings:
    """How contenders are measured; `boxwright benchmark` has an option for each."""

    device: str = setting("auto", "Device of PyTorch models: cpu, cuda, cuda:1, mps, or auto for cuda if available.")
    tf32: bool = setting(False, "On a GPU, round float32 matrix products to TF32 too, as convolutions are by default.")
    threads: int = setting(0, "Threads of every backend; 0 for its own choice.", least=0)
    rounds: int = setting(15, "Rounds, with one call of each model.", least=3)
    train: bool = setting(False, "Measure training steps, on images with eight synthetic boxes each.")
    compile: bool = setting(False, "Also measure PyTorch networks compiled; a minute or more each.")
    precision: str = setting("float32", "With bfloat16, also measure PyTorch networks in bfloat16.")
    allow_edited: bool = setting(False, "Open an exported file that was changed after `boxwright export` wrote it.")

    def __post_init__(self) -> None:
        name_device(self)
        if self.precision not in _PRECISIONS:
            raise ConfigError(f"--precision {self.precision}: expected {' or '.join(_PRECISIONS)}")
