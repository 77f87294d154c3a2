"""What the comparison concludes from many differences at once."""

from __future__ import annotations

from typing import Any

import numpy as np

from boxwright.exporters.matching import Difference
from boxwright.exporters.parity import Report, _Detections


def outputs(count: int) -> dict[str, Any]:
    corners = np.linspace(0, 0.5, count, dtype=np.float32)
    return {
        "detection_boxes": np.stack([corners, corners, corners + 0.1, corners + 0.1], 1)[None],
        "detection_scores": np.full((1, count), 0.07, np.float32),
        "detection_classes": np.ones((1, count), np.float32),
        "num_detections": np.full(1, count, np.float32),
    }


def test_too_few_candidates_are_told_however_much_is_missing() -> None:
    """Detectors that have learnt little score everywhere: what is missing is legion, and more candidates cure it."""

    def all_missing(found: Any, wanted: Any) -> Difference:
        return Difference(missing=[f"object {number}" for number in range(len(wanted))])

    stages = []
    for name in ("suppression", "detections"):
        one = _Detections(name)
        for picture in range(3):
            image = np.zeros((10, 10, 3), np.uint8)
            one.add(outputs(0), outputs(30), (picture, image), all_missing)  # type: ignore[arg-type]
        stages.append(one)
    stages[1].too_few.append("picture 2: candidates that suppression ignored could matter")
    report = Report([one.stage() for one in stages], {})
    assert not report.complete
    assert not report.passed
    assert report.problem().startswith("detections: picture 2: candidates that suppression ignored")
    assert [stage.largest for stage in report.stages] == [90, 91]
    complete = Report([stages[0].stage()], {})
    assert complete.complete
    assert complete.problem().startswith("suppression: picture 0: missing object 0")
