"""Calibration: errors by hand, and curves that the configuration reads."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from boxwright.config.load import dump_message, parse_message
from boxwright.families.shared.post_processing import build_score_converter
from boxwright.pipeline import messages as m
from boxwright.report.matching import class_curves, match
from boxwright.report.scores import calibration_message, fit, isotonic, reliability
from tests.report import made


def test_an_error_by_hand() -> None:
    """Of 0.92 and 0.94 one is right, 0.12 is wrong: (2 |0.93 - 0.5| + |0.12 - 0|) / 3."""
    found = reliability(np.array([0.92, 0.94, 0.12]), np.array([1.0, 0.0, 0.0]))
    assert found.error == pytest.approx((2 * 0.43 + 0.12) / 3)
    assert found.counts.sum() == 3
    assert reliability(np.array([1.0]), np.array([1.0])).error == 0
    assert np.isnan(reliability(np.zeros(0), np.zeros(0)).error)


def test_a_curve_by_hand() -> None:
    """0.2 wrong, 0.4 right, 0.6 wrong, 0.8 right: the two in the middle descend, and are pooled at 0.5."""
    x, y = isotonic(np.array([0.8, 0.2, 0.6, 0.4]), np.array([1.0, 0.0, 0.0, 1.0]))
    np.testing.assert_allclose(x, [0.2, 0.5, 0.8])
    np.testing.assert_allclose(y, [0, 0.5, 1])


def test_overconfident_scores_are_mended_on_the_other_half(tmp_path: Path) -> None:
    """Objects are found with a probability of the square of the score."""
    random = np.random.default_rng(0)
    objects, rows = [], []
    for image in range(400):
        for place in range(5):
            box, score = (60 * place + 5, 10, 40, 40), float(random.uniform())
            objects.append((image, 0, box))
            away = (60 * place + 5, 150, 40, 40)
            rows.append((image, 0, box if random.uniform() < score**2 else away, score))
    tables = made.tables(tmp_path, made.truth([(320, 240)] * 400, objects, ["a"]), made.found(rows))
    fitted = fit(class_curves(tables, match(tables)), 400)
    assert fitted is not None
    # The mean of score - score² is 1/6.
    assert fitted.before.error == pytest.approx(1 / 6, abs=0.03)
    assert fitted.after.error < 0.05
    np.testing.assert_allclose(np.interp(0.7, fitted.x, fitted.y), 0.49, atol=0.08)

    # The detector of a configuration with the message gives these scores.
    text = dump_message(calibration_message(fitted))
    message = parse_message(text, m.CalibrationConfig)
    converter = build_score_converter(m.PostProcessing(calibration_config=message))
    scores = np.linspace(0, 1, 7, dtype=np.float32)
    ours = converter(torch.from_numpy(scores))
    np.testing.assert_allclose(ours.numpy(), np.interp(scores, fitted.x, fitted.y), atol=1e-5)


def test_nothing_to_fit(tmp_path: Path) -> None:
    tables = made.tables(tmp_path, made.truth([(9, 9)] * 2, [(0, 0, (1, 1, 2, 2))], ["a"]), [])
    assert fit(class_curves(tables, match(tables)), 2) is None
