"""Average precision of the report is COCO's, and its intervals are those of images drawn again."""

from __future__ import annotations

import contextlib
import io
from pathlib import Path

import numpy as np
import pytest
from pycocotools.coco import COCO
from pycocotools.cocoeval import COCOeval

from boxwright.report.analysis import ap_interval, bootstrap, image_draws
from boxwright.report.matching import average_precisions, class_curves, match, mean_ap, sampled_precision
from tests.report import made


@pytest.mark.slow_cases("2")
@pytest.mark.parametrize("seed", [0, 1, 2])
def test_it_is_pycocotools_average_precision(seed: int, tmp_path: Path) -> None:
    paths = made.write(tmp_path, *made.messy(seed))
    with contextlib.redirect_stdout(io.StringIO()):
        truth = COCO(str(paths[0]))
        theirs = COCOeval(truth, truth.loadRes(str(paths[1])), "bbox")
        theirs.evaluate()
        theirs.accumulate()
    # [T, R, K, areas, limits], -1 without objects
    expected = theirs.eval["precision"][:, :, :, 0, 2].transpose(2, 0, 1)
    tables = made.tables(tmp_path, *made.messy(seed))
    curves = class_curves(tables, match(tables))
    ours = average_precisions(curves)
    assert np.isnan(ours[-1]).all()
    np.testing.assert_allclose(ours[:-1], expected[:-1].mean(-1), atol=1e-12)
    np.testing.assert_allclose(np.stack([sampled_precision(curve) for curve in curves[:-1]]), expected[:-1], atol=1e-12)
    assert mean_ap(ours) == pytest.approx(theirs.eval["precision"][:, :, :-1, 0, 2].mean(), abs=1e-12)


def test_images_that_count_twice_are_images_that_are_there_twice(tmp_path: Path) -> None:
    """Scores are all different here: among ties the order would matter."""
    content = made.truth(
        [(100, 100)] * 3, [(0, 0, (10, 10, 20, 20)), (1, 0, (10, 10, 20, 20)), (2, 0, (5, 5, 9, 9))], "a"
    )
    rows = [(0, 0, (10, 10, 20, 22), 0.9), (1, 0, (50, 50, 20, 20), 0.8), (1, 0, (10, 10, 20, 20), 0.7)]
    tables = made.tables(tmp_path / "once", content, made.found(rows))
    weighted = average_precisions(class_curves(tables, match(tables)), np.array([1.0, 2.0, 0.0]))
    twice = made.truth([(100, 100)] * 3, [(image, 0, (10, 10, 20, 20)) for image in range(3)], "a")
    rows += [(2, label, box, score - 1e-6) for image, label, box, score in rows if image == 1]
    tables = made.tables(tmp_path / "twice", twice, made.found(rows))
    np.testing.assert_allclose(weighted, average_precisions(class_curves(tables, match(tables))), atol=1e-12)


def test_an_interval_holds_the_value_and_narrows_with_more_images(tmp_path: Path) -> None:
    widths = []
    for images in (30, 270):
        tables = made.tables(tmp_path / str(images), *made.messy(3, images))
        curves = class_curves(tables, match(tables))
        found = ap_interval(average_precisions(curves), bootstrap(curves, images, 60))
        assert found.low < found.value < found.high
        widths.append(found.high - found.low)
    # Nine times the images, a third of the width.
    assert widths[1] == pytest.approx(widths[0] / 3, rel=0.6)


def test_draws_are_of_as_many_images_and_the_same_again() -> None:
    drawn = list(image_draws(7, 5))
    assert all(one.sum() == 7 for one in drawn)
    np.testing.assert_array_equal(drawn, list(image_draws(7, 5)))
