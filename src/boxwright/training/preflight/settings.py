"""Settings of the checks before a run."""

from __future__ import annotations

from dataclasses import dataclass

from boxwright.base.read_settings import LABELS_ARE
from boxwright.base.settings import setting


@dataclass(frozen=True, kw_only=True)
class DoctorSettings:
    """What is checked before a run, and how it is reported; `boxwright doctor` has an option for each."""

    checkpoint: str = setting("", "Weights to start from; default: fine_tune_checkpoint.")
    full: bool = setting(False, "Read all samples, not only 1000, and 10,000 image files, of each set.")
    as_json: bool = setting(False, "Print a JSON list of findings instead of a table.", flags=("--json",))
    steps: bool = setting(True, "Try training steps, for memory and speed.")
    workers: int = setting(1, "Processes that prepare samples.", least=0)
    labels_are: str = setting("", LABELS_ARE)
    device: str = setting("auto", "Device of those steps: cpu, cuda, cuda:1, or auto for a GPU if available.")
