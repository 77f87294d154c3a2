"""A .pt2 file in a session: what its program returns, all or some."""

from __future__ import annotations

import numpy as np

from boxwright.runtime.sessions import open_session
from boxwright.weights.exports import open_export
from tests.exporters.tiny_exports import tiny_export


def test_it_returns_what_the_same_program_returns_as_onnx() -> None:
    session, other = open_export(tiny_export(".pt2")).session, open_session(tiny_export(".onnx"))
    images = np.random.default_rng(0).integers(0, 256, (2, 8, 6, 3), np.uint8)
    wanted = other.run(images)
    found = session.run(images)
    assert found.keys() == wanted.keys()
    for name, value in found.items():
        np.testing.assert_allclose(value, wanted[name], rtol=1e-5, atol=1e-5)
    name = session.output_names[-1]
    (only,) = session.run(images, [name]).items()
    assert only[0] == name
    assert np.array_equal(only[1], found[name])
