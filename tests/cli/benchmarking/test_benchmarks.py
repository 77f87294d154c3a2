"""The scripts in `benchmarks/`: their tables, and what they count."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from benchmarks import counts, exports, race, scaling, speed
from benchmarks.official_memory import table

FOLDER = Path(__file__).parents[3] / "benchmarks"


def recorded(name: str) -> Any:
    return json.loads((FOLDER / "results" / name).read_text(encoding="utf-8"))


def test_the_table_of_memory_is_what_was_recorded() -> None:
    rows = recorded("official-memory-cpu.json")
    told = (FOLDER.parent / "docs" / "memory.md").read_text(encoding="utf-8")
    listed = told[told.index("| configuration |") :].strip().splitlines()
    assert listed == table(rows)
    assert len({row["config"] for row in rows}) == len(rows)
    assert all(row["peak_gib"] > 0.4 for row in rows if "error" not in row)


def test_the_table_of_growing_costs_is_what_was_recorded() -> None:
    told = (FOLDER.parent / "docs" / "scaling.md").read_text(encoding="utf-8")
    assert "\n".join(scaling.table(recorded("scaling-cpu.json"))) in told


def raced(ratio: float, way: str = "torch", mode: str = "train", batch: int = 8) -> dict[str, Any]:
    about = {"way": way, "instructions": "default", "busy_per_core": 0, "model": "ssd_mobilenet_v2_fpnlite_320x320"}
    row = {"mode": mode, "batch": batch, "ratio_median_of_rounds": ratio, "ours_peak_mib": 600.0, "tf_peak_mib": 1000.0}
    return {**about, **row, "tf_last": {"total_loss": 1.0}}


def test_a_race_is_kept_by_processor_and_shown(tmp_path: Path) -> None:
    path = tmp_path / "race.json"
    race.keep(raced(9.0), path)
    for row in (
        raced(0.9),
        raced(0.7, mode="detect"),
        raced(0.8, mode="detect", batch=1),
        raced(0.3, "onnxruntime", "detect", 1),
    ):
        race.keep(row, path)
    (machine,) = json.loads(path.read_text()).values()
    assert len(machine["rows"]) == 4, "the first was raced again"
    assert "tf_last" not in machine["rows"][0]
    assert race.table({"P": machine})[3:] == ["| FPNLite 320 | 0 | 0.90 |  | 0.80, 0.70 (batch 8) | 0.30 |  | 0.60 |"]


def test_the_table_beside_torchvision() -> None:
    row = {"preset": "p", "torchvision": "t", "what": "step", "batch": 8, "ratio": 0.5}
    assert speed.table({"rows": [row, {**row, "memory ratio": 1.25}]})[2:] == [
        "| `p` | `t` | step, batch 8 | 0.50 |  |",
        "| `p` | `t` | step, batch 8 | 0.50 | 1.25 |",
    ]


def test_the_table_of_exports() -> None:
    timings = [{"name": name, "batch": batch, "ratio": 0.25, "median_ms": 8.0}
               for name in ("ssd", "ssd/export/detector.onnx") for batch in (1, 8)]  # fmt: skip
    rows = {
        "torch": {"AP": 0.5},
        "onnx": {"AP": 0.5, "bytes": 2_700_000},
        "int8": {"refused": True},
        "times": {"timings": timings},
    }
    assert exports.table({"ssd": rows})[2:] == [
        "| ssd | torch | 0.5000 |  | 8 ms | 8 ms |",
        "| ssd | onnx | 0.5000 | 2.7 | 0.25 | 0.25 |",
    ]


def test_counts(tmp_path: Path, monkeypatch: Any) -> None:
    package = tmp_path / "src" / "boxwright"
    for name, text in {
        "__init__.py": "",
        "a/__init__.py": "",
        "a/one.py": "from boxwright.b import two\n" + "x = 1\n" * 50,
        "b/__init__.py": "",
        "b/two.py": "import boxwright.a.one\nx.__class__ = object\nassert x.__class__ == object\n",
        "b/three.c": "int x;\n",
    }.items():
        (package / name).parent.mkdir(parents=True, exist_ok=True)
        (package / name).write_text(text)
    monkeypatch.setattr(counts.subprocess, "check_output", lambda _: '{"ssd": ["a/one.py", "b/two.py"]}')
    assert {
        name: value if isinstance(value, int) else len(value) for name, value in counts.counts(tmp_path).items()
    } == {
        "lines of src": 55,
        "lines of tests": 0,
        "lines of benchmarks": 0,
        "Python files in src": 5,
        "packages": 2,
        "files under 40 lines": 4,
        "modules imported once": 2,
        "lines with __class__ =": 1,
        "arrows between packages": 2,
        "packages in circles": 2,
        "files of a step, ssd": 2,
    }
