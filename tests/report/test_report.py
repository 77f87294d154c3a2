"""Reports as folders: what is in them, bad input, and data that have nothing in them."""

from __future__ import annotations

import json
import re
from importlib.resources import files
from pathlib import Path
from typing import Any

import pytest

from boxwright.base.errors import ConfigError, DataError
from boxwright.report.sources import source_of_evaluation, source_of_files
from boxwright.report.write import write_report
from tests.cli.test_commands import run
from tests.report import made

A, B = (10, 10, 20, 20), (100, 100, 20, 20)
SCRIPT = "<script>alert('name')</script>"


def report(folder: Path, content: dict[str, Any], rows: made.Rows) -> dict[str, Any]:
    """Write a report into a folder and return its numbers."""
    paths = made.write(folder, content, rows)
    index = write_report(source_of_files(*paths), folder / "report")
    assert index.is_file()
    numbers: dict[str, Any] = json.loads((folder / "report" / "report.json").read_text())
    return numbers


def data_of(folder: Path, name: str) -> Any:
    """What a script beside the page adds."""
    (text,) = re.findall(r'report\.add\("[^"]+", (".*")\);', (folder / "report" / "data" / f"{name}.js").read_text())
    return json.loads(json.loads(text))


def test_the_command_reports_any_detectors_files(tmp_path: Path) -> None:
    content, rows = made.messy(0, 12)
    truth, results = made.write(tmp_path, content, rows)
    made.draw(tmp_path, content)
    output = run("report", "--detections", results, "--truth", truth, "--out", tmp_path / "r")
    assert output.splitlines()[-1] == f"next: open {tmp_path / 'r' / 'index.html'}"
    assert f"report: {tmp_path / 'r' / 'index.html'}" in output
    assert len(list((tmp_path / "r" / "pictures").glob("*.jpg"))) == 12
    numbers = json.loads((tmp_path / "r" / "report.json").read_text())
    low, high = numbers["intervals"]["Precision/mAP"][1:]
    assert low < numbers["metrics"]["DetectionBoxes_Precision/mAP"] < high
    page = (tmp_path / "r" / "index.html").read_text()
    assert "http:" not in page
    assert "https:" not in page


def test_names_are_text(tmp_path: Path) -> None:
    content = made.truth([(300, 300)], [(0, 0, A)], [SCRIPT, "naïve 猫 قط"])
    content["images"][0]["file_name"] = f"{SCRIPT}.jpg"
    report(tmp_path, content, made.found([(0, 0, A, 0.9), (0, 1, B, 0.8)]))
    page = (tmp_path / "report" / "index.html").read_text()
    assert SCRIPT not in page
    assert "&lt;script&gt;" in page
    assert "naïve 猫 قط" in page
    assert data_of(tmp_path, "summary")["classes"] == [SCRIPT, "naïve 猫 قط"]


ONE = ([(300, 300)], [(0, 0, A)], ["a"])


@pytest.mark.slow_cases("truth4-rows4-0.001", "truth3-rows3-1.0")
@pytest.mark.parametrize(
    ("truth", "rows", "average"),
    [
        (ONE, [], 0.0),  # no detections
        (([(300, 300)], [], ["a"]), [(0, 0, A, 0.9)], None),  # no objects
        (([(300, 300)], [], ["a"]), [], None),  # neither
        (ONE, [(0, 0, A, 0.9)], 1.0),  # one image, one class
        (([(300, 300)] * 3, [(n % 3, n, A) for n in range(1000)], [f"class {n}" for n in range(1000)]), [(0, 0, A, 0.9)], 0.001),
    ],
)  # fmt: skip
def test_nearly_empty_data(truth: Any, rows: Any, average: float | None, tmp_path: Path) -> None:
    numbers = report(tmp_path, made.truth(*truth), made.found(rows))
    assert numbers["metrics"]["DetectionBoxes_Precision/mAP"] == (
        average if average is None else pytest.approx(average)
    )
    assert "nan" not in (tmp_path / "report" / "index.html").read_text()


@pytest.mark.slow
def test_a_large_evaluation_stays_small(tmp_path: Path) -> None:
    """5,000 images as COCO's validation: 3 MB before the first click, 5 MB in all, without pictures."""
    content, rows = made.messy(0, 5000, 80)
    report(tmp_path, content, rows)
    folder = tmp_path / "report"
    sizes = {path.relative_to(folder).as_posix(): path.stat().st_size for path in folder.rglob("*") if path.is_file()}
    page = (folder / "index.html").read_text()
    loaded = ["index.html", *re.findall(r'(?:src|href)="([^"#:]+\.(?:js|css))"', page)]
    assert "data/summary.js" in loaded
    assert sum(sizes[name] for name in loaded) < 3e6
    assert sum(sizes.values()) < 5e6


def test_what_cannot_be_reported(tmp_path: Path) -> None:
    content = made.truth(*ONE)
    for row, message in (
        ({"image_id": 7, "category_id": 1, "bbox": [1, 2, 3, 4], "score": 1}, "row 0: image_id '7' is not in"),
        ({"image_id": 1, "category_id": 9, "bbox": [1, 2, 3, 4], "score": 1}, "row 0: category_id '9' is not in"),
        ({"image_id": 1, "category_id": 1, "bbox": [1, 2, 3], "score": 1}, "row 0: bbox: expected 4 finite numbers"),
        ({"image_id": 1, "category_id": 1, "bbox": [1, 2, 3, 4]}, "row 0: score: expected 1 finite number, found"),
        ({"image_id": 1, "category_id": 1, "bbox": [1, 2, 3, 4], "score": 1e999}, "row 0: score"),
    ):
        with pytest.raises(DataError, match=message):
            source_of_files(*made.write(tmp_path, content, [row]))
    (tmp_path / "results.json").write_text("{}")
    with pytest.raises(DataError, match=r"results\.json: not JSON that is a list of objects: expected \["):
        source_of_files(tmp_path / "instances.json", tmp_path / "results.json")
    with pytest.raises(DataError, match="no detections.json"):
        source_of_evaluation(tmp_path)
    (tmp_path / "detections.json").write_text("[]")
    with pytest.raises(DataError, match="an older version evaluated here; evaluate again"):
        source_of_evaluation(tmp_path)
    from boxwright.cli.report import report_command
    from boxwright.report.settings import ReportSettings

    with pytest.raises(ConfigError, match="both --detections and --truth"):
        report_command(ReportSettings(), detections=tmp_path / "results.json")


def contrast(first: str, second: str) -> float:
    """WCAG 2's contrast of two colors, #rgb or #rrggbb."""
    lighter, darker = sorted((luminance(first), luminance(second)), reverse=True)
    return (lighter + 0.05) / (darker + 0.05)


def luminance(color: str) -> float:
    digits = color.lstrip("#")
    shares = [
        int(pair, 16) / 255 for pair in (re.findall("..", digits) if len(digits) == 6 else [d * 2 for d in digits])
    ]
    linear = [share / 12.92 if share <= 0.04045 else ((share + 0.055) / 1.055) ** 2.4 for share in shares]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def mixed(first: str, second: str, share: float) -> str:
    """The color that CSS mixes in sRGB of a share of one color and the rest of another, as #rrggbb."""
    parts = ((int(first[at : at + 2], 16), int(second[at : at + 2], 16)) for at in (1, 3, 5))
    return "#" + "".join(f"{round(share * one + (1 - share) * other):02x}" for one, other in parts)


def test_text_on_the_pages_can_be_read() -> None:
    """In light and dark: text and links on both backgrounds, numbers of the matrix, and the texts beside boxes."""
    css = files("boxwright.report").joinpath("assets", "report.css").read_text()
    light, dark = (
        dict(re.findall(r"--(\w+): (#[0-9a-f]{3,6});", block)) for block in re.findall(r":root \{([^}]*)\}", css)
    )
    assert len(light) == len(dark) >= 18
    ((number, most),) = re.findall(r"#matrix td button \{.*color: var\(--(\w+)\);.*calc\(var\(--v\) \* (\d+)%\)", css)
    for colors in (light, dark):
        for text in ("text", "soft", "accent"):
            for background in ("back", "panel"):
                assert contrast(colors[text], colors[background]) >= 4.5, (text, background)
        for shade in ("right", "wrong"):
            assert contrast(colors[number], mixed(colors[shade], colors["panel"], int(most) / 100)) >= 4.5, shade
    (ink,) = re.findall(r"\.label text \{ fill: (#\w+);", css)
    backgrounds = re.findall(r"\.label[.\w]* rect \{[^}]*fill: (#\w+);", css)
    assert len(backgrounds) == 4
    assert min(contrast(ink, background) for background in backgrounds) >= 4.5
