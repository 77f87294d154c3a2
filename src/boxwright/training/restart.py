"""Restarts: from some step on, training goes on from the state that was evaluated best (`restart_from_best_step`).

DETRs' authors start their last epochs, which are without strong augmentation, from the best average, and again after
each epoch without a gain.
"""

from __future__ import annotations

from typing import Any

from boxwright.base.files import is_file
from boxwright.training.state import TrainingState
from boxwright.weights.store import CheckpointStore, read_checkpoint, write_checkpoint

# The best state at the first restart, from which later ones start too; best.pt may be a later one then.
_KEPT = "restart.pt"


def is_restart_due(state: TrainingState, first_step: int) -> bool:
    """Return whether training restarts before the next step; its evaluations have been collected.

    It follows from the state alone, so that a run that is resumed here does the same.

    Args:
        state: The run's.
        first_step: The step of the first restart; 0 for none.
    """
    if not first_step or state.step < first_step or state.restarted_at == state.step:
        return False
    selection = state.selection
    return state.step == first_step or (selection.evaluated == state.step and selection.best_step != state.step)


def read_restart(state: TrainingState, store: CheckpointStore) -> dict[str, Any] | None:
    """Return the content of the checkpoint to restart from, and keep it for later restarts; None without a best one.

    Raises:
        CheckpointError: Where it cannot be read, or kept.
    """
    kept = store.folder / _KEPT
    if state.restarts and is_file(kept):
        return read_checkpoint(kept)
    if state.selection.best is None or not is_file(store.best):
        return None
    content = read_checkpoint(store.best)
    write_checkpoint(content, kept)
    return content
