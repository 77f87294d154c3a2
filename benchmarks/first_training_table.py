"""The tables of docs/small_data.md from the results of first_training.py; `figures.py` writes them into the page."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from statistics import median
from typing import Any

from first_training_data import DATA

Row = dict[str, Any]


def budgets(results: dict[str, Any]) -> list[str]:
    """Return the lines of what the default command reaches in some minutes: medians over seeds, with their range.

    The interval is the widest of the seeds', each of draws of the test images.
    """
    groups: dict[tuple[str, str, float], list[Row]] = {}
    for row in results["rows"]:
        name = f"{row['weights']}, {row['set']}" if row.get("set") else row["weights"]
        groups.setdefault((row["data"], name, row["minutes"]), []).append(row)
    lines = [
        "| | weights | minutes | steps | AP | 95 % | AP50 | seeds | the command took, s |",
        "|---|---|---:|---:|---:|---:|---:|---:|---:|",
    ]
    for (data, weights, minutes), rows in sorted(
        groups.items(), key=lambda one: (list(DATA).index(one[0][0]), *one[0][1:])
    ):
        cells = [
            *(DATA[data].title, weights, f"{minutes:g}", f"{median(row['steps'] for row in rows):.0f}"),
            *(_spread(rows, "AP"), _interval(rows), _spread(rows, "AP50"), str(len(rows))),
            f"{median(row['seconds of the command'] for row in rows):.0f}",
        ]
        lines.append(_line(cells))
    return lines


def variants(results: dict[str, Any]) -> list[str]:
    """Return the lines of what one change at a time is worth in two minutes on blood cells, the best first.

    Of several seeds the median, with their range.
    """
    groups: dict[str, list[Row]] = {}
    for row in results["rows"]:
        groups.setdefault(row["variant"], []).append(row)
    cells = (
        [
            name,
            f"{median(row['ms a step'] for row in rows):.0f}",
            f"{median(row['steps'] for row in rows):.0f}",
            *(_spread(rows, "AP"), _interval(rows), _spread(rows, "AP50"), str(len(rows))),
        ]
        for name, rows in sorted(groups.items(), key=lambda one: -median(row["AP"] for row in one[1]))
    )
    head = ["| | ms a step | steps | AP | 95 % | AP50 | seeds |", "|---|---:|---:|---:|---:|---:|---:|"]
    return [*head, *map(_line, cells)]


def statistics(results: dict[str, Any]) -> list[str]:
    """Return the lines of what trainings are worth with what their statistics began with, and without."""
    cells = (
        [row["training"], *(f"{row[kind]['AP']:.3f}" for kind in ("as it is", "start taken out"))]
        for row in results["rows"]
    )
    head = ["| | AP as TensorFlow evaluates it | AP, start taken out |", "|---|---:|---:|"]
    return [*head, *map(_line, cells)]


def _line(cells: Iterable[str]) -> str:
    return f"| {' | '.join(cells)} |"


def _interval(rows: Sequence[Row]) -> str:
    return f"{min(row['AP interval'][0] for row in rows):.3f} to {max(row['AP interval'][1] for row in rows):.3f}"


def _spread(rows: Sequence[Row], name: str) -> str:
    values = sorted(row[name] for row in rows)
    middle = f"{median(values):.3f}"
    return middle if len(values) == 1 else f"{middle} ({values[0]:.3f} to {values[-1]:.3f})"
