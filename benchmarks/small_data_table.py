"""The table of docs/small_data.md, from the results of small_data.py.

    python benchmarks/small_data_table.py

`figures.py` writes it into the page, and `make check` fails if it is stale.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from statistics import mean
from typing import Any

RESULTS = Path(__file__).parent / "results" / "small-data-cpu.json"
DATA = {"bccd": "blood cells", "raccoon": "raccoons"}
HEAD = (
    "| | | minutes | steps | AP | 95 % | AP50 | ms an image, eager | exported | step's memory, MiB | weights, MB "
    "| ONNX, MB |",
    "|---|---|---:|---:|---:|---:|---:|---:|---:|---:|---:|---:|",
)


def table(results: dict[str, Any]) -> list[str]:
    """Return the lines of the table: for each data and contender that was trained, the best AP first.

    Of several seeds AP and AP50 are means, followed by the least and the highest; the interval is then the widest.
    """
    costs = {row["contender"]: row for row in results["speed"]}
    groups: dict[tuple[str, str], list[dict[str, Any]]] = {}
    for row in results["training"]:
        groups.setdefault((row["data"], row["contender"]), []).append(row)
    order = sorted(groups, key=lambda key: (list(DATA).index(key[0]), -mean(row["AP"] for row in groups[key])))
    return [*HEAD, *_rows(groups, order, costs)]


def _rows(
    groups: dict[tuple[str, str], list[dict[str, Any]]],
    order: list[tuple[str, str]],
    costs: dict[str, dict[str, Any]],
) -> Iterator[str]:
    for data, contender in order:
        rows = groups[data, contender]
        low, high = min(row["AP interval"][0] for row in rows), max(row["AP interval"][1] for row in rows)
        cells = [
            DATA[data],
            contender,
            f"{mean(row['processor seconds'] for row in rows) / 60:.1f}",
            str(rows[0]["steps"]),
            _spread(rows, "AP"),
            f"{low:.3f} to {high:.3f}",
            _spread(rows, "AP50"),
            *_costs(costs.get(contender)),
        ]
        yield f"| {' | '.join(cells)} |"


def _spread(rows: list[dict[str, Any]], name: str) -> str:
    values = [row[name] for row in rows]
    return f"{mean(values):.3f}" + (
        f" ({min(values):.3f} to {max(values):.3f}, {len(values)} seeds)" if len(values) > 1 else ""
    )


def _costs(row: dict[str, Any] | None) -> list[str]:
    if row is None:  # a recipe whose network is another row's
        return [""] * 5
    return [
        *(f"{row[f'{kind} ms']['least']:.1f}, {row[f'{kind} ms']['median']:.1f}" for kind in ("eager", "exported")),
        f"{row['peak MiB of a step']:.0f}",
        f"{row['weights MB']:.1f}",
        f"{row['ONNX MB']:.1f}",
    ]


if __name__ == "__main__":
    print("\n".join(table(json.loads(RESULTS.read_text(encoding="utf-8")))))
