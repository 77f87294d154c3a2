"""Answers are the JSON of the whole arrays, though they are written a picture at a time."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest

from boxwright.inference.serving import open_inference_protocol as v2
from boxwright.inference.serving import tensorflow_protocol as tf

GENERATOR = np.random.default_rng(0)
ROWS = [
    {
        "num_detections": np.float32(number) * np.ones((), np.float32),
        "boxes": GENERATOR.random((2, 4), np.float32),
        "none": np.zeros((0, 4), np.float32),
        "raw_scores": GENERATOR.random((3, 2), np.float32),
    }
    for number in range(3)
]


def same(found: Any, wanted: Any) -> None:
    np.testing.assert_array_equal(np.array(found, np.float32), wanted)


def test_by_row_and_by_column() -> None:
    rows = json.loads(tf.answer(tf.PredictRequest([], True, ()), ROWS))["predictions"]
    assert [list(row) for row in rows] == [["num_detections", "boxes", "none"]] * 3
    for row, wanted in zip(rows, ROWS, strict=True):
        for name, value in row.items():
            same(np.reshape(value, wanted[name].shape), wanted[name])
    columns = json.loads(tf.answer(tf.PredictRequest([], False, ("raw_scores", "num_detections", "raw_scores")), ROWS))
    assert list(columns["outputs"]) == ["raw_scores", "num_detections"]
    for name, value in columns["outputs"].items():
        same(value, np.stack([row[name] for row in ROWS]))


@pytest.mark.parametrize("binary", [False, True])
def test_open_inference(binary: bool) -> None:
    asked = v2.InferRequest([], dict.fromkeys(ROWS[0], binary), False, "7")
    body, length = v2.answer(asked, ROWS, "a", 1)
    content, tail = json.loads(body[:length]), body[length:] if length else b""
    assert (content["id"], content["model_name"], content["model_version"]) == ("7", "a", "1")
    for one in content["outputs"]:
        wanted = np.stack([row[one["name"]] for row in ROWS])
        assert (one["datatype"], one["shape"]) == ("FP32", list(wanted.shape))
        if binary:
            size = one["parameters"]["binary_data_size"]
            found, tail = np.frombuffer(tail[:size], "<f4"), tail[size:]
        else:
            found = np.array(one["data"], np.float32)
        same(found.reshape(wanted.shape), wanted)
