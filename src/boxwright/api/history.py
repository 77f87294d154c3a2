"""A plot of a run's loss and average precision over its steps."""

from __future__ import annotations

import io
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from PIL import Image

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_TOTAL = "Loss/total_loss"
_SIZE, _DPI = (9.0, 3.6), 110


def draw_history(history: Sequence[Mapping[str, Any]], metrics: Sequence[str]) -> Image.Image:
    """Return two plots side by side: the loss terms, and the evaluated metrics.

    Args:
        history: Lines of a run's log, each with its step; those of evaluations have `evaluation`.
        metrics: The metrics to draw; if none of them was evaluated, the first that was.

    Returns:
        The picture.
    """
    # Not pyplot, which keeps figures and opens windows.
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    training = [row for row in history if "evaluation" not in row]
    evaluations = [row for row in history if "evaluation" in row]
    figure = Figure(figsize=_SIZE, dpi=_DPI, layout="constrained")
    left, right = figure.subplots(1, 2)
    terms = sorted(
        {name for row in training for name in row if name.startswith("Loss/")}, key=lambda n: (n != _TOTAL, n)
    )
    _draw(left, training, terms, "loss")
    known = [name for name in metrics if any(name in row for row in evaluations)]
    others = [name for row in evaluations[-1:] for name in row if name not in ("step", "evaluation", "learning_rate")]
    _draw(right, evaluations, known or others[:1], "evaluation")
    with io.BytesIO() as file:
        FigureCanvasAgg(figure).print_png(file)
        return Image.open(io.BytesIO(file.getvalue())).convert("RGB")


def _draw(axes: Axes, rows: Sequence[Mapping[str, Any]], names: Sequence[str], title: str) -> None:
    for name in names:
        points = [(row["step"], row[name]) for row in rows if isinstance(row.get(name), int | float)]
        # Markers for few points: a line through a single evaluation would be invisible.
        axes.plot(*zip(*points, strict=True), label=name.rpartition("/")[2], marker="." if len(points) < 20 else "")
    axes.set_title(title if names else f"{title}: nothing was logged")
    axes.set_xlabel("step")
    axes.grid(visible=True, alpha=0.3)
    if names:
        axes.legend(fontsize="small")
