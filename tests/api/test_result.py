"""What is done with a result."""

from __future__ import annotations

import io
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

import boxwright as bw
from boxwright.base.drawing import Details, draw_boxes
from boxwright.evaluation.pictures import draw_detections
from boxwright.types import Categories, Category, Detections

CLASSES = Categories((Category(0, 10, "cat"), Category(1, 20, "dog <b>")))


def result(source: str = "", **known: Any) -> bw.Result:
    """Three objects in a grey picture of 40 by 60 pixels."""
    boxes = np.array([[1, 2, 11, 22], [20, 5, 50, 35], [0, 0, 60, 40]], np.float32)
    found = Detections(
        boxes,
        np.array([0.9, 0.4, 0.2], np.float32),
        np.array([0, 1, 0]),
        (40, 60),
        CLASSES,
        **known,
    )
    return bw.Result(found, np.full((40, 60, 3), 90, np.uint8), source)


def test_indexing() -> None:
    found = result()
    assert len(found) == 3
    one = found[0]
    assert isinstance(one, bw.FoundObject)
    box, score, name = one
    assert box.tolist() == [1, 2, 11, 22]
    assert score == pytest.approx(0.9)
    assert name == one.name == "cat"
    assert found[-1].box.tolist() == [0, 0, 60, 40]
    assert found[np.int64(1)].label == 1
    assert [item.name for item in found] == ["cat", "dog <b>", "cat"] == found.names()
    assert "cat 0.90 at 1.0, 2.0, 11.0, 22.0" in repr(one)
    for number in (3, -4):
        with pytest.raises(IndexError, match="of 3"):
            found[number]


@pytest.mark.parametrize(
    ("rows", "kept"),
    [
        (slice(2), [0, 1]),
        (slice(None, None, -1), [2, 1, 0]),
        ([2, 0], [2, 0]),
        (np.array([True, False, True]), [0, 2]),
        ([False, True, False], [1]),
        (torch.tensor([True, True, False]), [0, 1]),
        ([], []),
        (np.zeros(3, bool), []),
    ],
)
def test_some_of_them(rows: Any, kept: list[int]) -> None:
    masks = np.arange(12, dtype=np.float32).reshape(3, 2, 2) / 12
    found = result("a.jpg", masks=masks, tracks=np.array([7, 8, 9]))
    some = found[rows]
    assert isinstance(some, bw.Result)
    assert some.scores.tolist() == found.scores[kept].tolist()
    assert some.boxes.tolist() == found.boxes[kept].tolist()
    assert some.numpy().masks is not None
    assert np.array_equal(some.numpy().masks, masks[kept])
    assert [one.track for one in some] == np.array([7, 8, 9])[kept].tolist()
    assert some.source == "a.jpg"


def test_what_is_drawn_is_what_was_selected() -> None:
    """Without a selection 0.5 is the least score, as for `boxwright predict`; a selection is drawn whole."""
    found = result()
    plain = found.image

    def changed(picture: Image.Image) -> set[int]:
        """The objects on whose right edge, halfway down, something was drawn."""
        image = np.asarray(picture).astype(int)
        zoom = picture.width // 60
        edges = {0: (12, 11), 1: (20, 50), 2: (38, 60)}
        return {n for n, (y, x) in edges.items() if np.abs(image[y * zoom, (x - 1) * zoom : x * zoom] - 90).max() > 40}

    assert changed(found.plot()) == {0}
    assert changed(found[found.scores > 0.3].plot()) == {0, 1}
    assert changed(found.plot(min_score=0.1)) == {0, 1, 2}
    assert changed(found[:0].plot()) == set()
    assert np.array_equal(found.image, plain)


def test_show_opens_a_viewer(monkeypatch: pytest.MonkeyPatch) -> None:
    shown: list[Image.Image] = []
    monkeypatch.setattr("PIL.ImageShow.show", lambda picture: shown.append(picture) or True)
    result().show(min_score=0.3)
    assert np.array_equal(np.asarray(shown[0]), np.asarray(result().plot(min_score=0.3)))
    monkeypatch.setattr("PIL.ImageShow.show", lambda _: False)
    with pytest.raises(
        bw.OutputError, match=r'no program that shows pictures is installed here; .*result.save\("out.jpg'
    ):
        result().show()


def test_show_displays_in_a_notebook(monkeypatch: pytest.MonkeyPatch) -> None:
    import sys
    from types import SimpleNamespace

    shown: list[Image.Image] = []
    monkeypatch.setattr("rich.console.Console", lambda: SimpleNamespace(is_jupyter=True))
    monkeypatch.setitem(sys.modules, "IPython", SimpleNamespace())
    monkeypatch.setitem(sys.modules, "IPython.display", SimpleNamespace(display=shown.append))
    result().show()
    assert shown[0].size == result().plot().size


def test_save(tmp_path: Path) -> None:
    found = result()
    for name, kind in (("a.jpg", "JPEG"), ("b.png", "PNG"), ("c.JPEG", "JPEG")):
        assert found.save(tmp_path / "new" / name) == tmp_path / "new" / name
        with Image.open(tmp_path / "new" / name) as image:
            assert image.format == kind
    with pytest.raises(bw.DataError, match=r"expected a name that ends in \.jpg"):
        found.save(tmp_path / "a.gif")


def test_repr_is_short_and_says_what_is_there() -> None:
    text = repr(result("photos/a.jpg"))
    assert text == "<Result 60×40 in photos/a.jpg: 1 cat (score 0.5 or more; 3 objects in all)>"
    assert repr(result()[:2]) == "<Result 60×40: 1 cat, 1 dog <b>>"
    assert repr(result()[:0]) == "<Result 60×40: nothing>"


def test_notebooks_show_the_picture_and_a_table() -> None:
    html = result()[:2]._repr_html_()
    assert "<td>cat</td><td>0.90</td><td>1, 2, 11, 22</td>" in html
    assert "dog &lt;b&gt;" in html
    assert "<b>" not in html
    data = html.split("base64,")[1].split('"')[0]
    import base64

    with Image.open(io.BytesIO(base64.b64decode(data))) as image:
        assert image.format == "JPEG"


def test_to_coco() -> None:
    rows = result("photos/000123.jpg").to_coco()
    assert rows[0] == {"image_id": "000123", "category_id": 10, "bbox": [1.0, 2.0, 10.0, 20.0], "score": 0.9}
    assert [row["category_id"] for row in rows] == [10, 20, 10]
    assert result("1.jpg").to_coco()[0]["image_id"] == 1
    assert result().to_coco(image_id=7)[0]["image_id"] == 7
    json.dumps(rows)
    masked = result(masks=np.ones((3, 2, 2), np.float32)).to_coco(1)
    assert masked[0]["segmentation"]["size"] == [40, 60]


def test_to_pandas() -> None:
    frame = result().to_pandas()
    assert list(frame.columns) == ["x_min", "y_min", "x_max", "y_max", "score", "label", "name"]
    assert frame["name"].tolist() == ["cat", "dog <b>", "cat"]
    assert frame["x_max"].tolist() == [11, 50, 60]
    assert len(result()[:0].to_pandas()) == 0


def test_to_supervision() -> None:
    import supervision

    found = result(masks=np.ones((3, 4, 4), np.float32))
    detections = found.to_supervision()
    assert isinstance(detections, supervision.Detections)
    assert detections.xyxy.tolist() == found.boxes.tolist()
    assert detections.class_id.tolist() == [0, 1, 0]
    assert detections.data["class_name"].tolist() == found.names()
    assert detections.mask.shape == (3, 40, 60)
    assert len(detections[detections.confidence > 0.3]) == 2
    assert len(result()[:0].to_supervision()) == 0


def test_numpy_and_tensors() -> None:
    found = result(keypoints=np.zeros((3, 2, 2), np.float32), tracks=np.array([4, 5, 6]))
    assert found.numpy() is found.objects
    tensors = found.to("cpu")
    assert isinstance(tensors, bw.Detections)
    assert torch.equal(tensors.boxes, torch.from_numpy(found.boxes))
    assert tensors.labels.dtype == torch.int64
    assert tensors.keypoints is not None
    assert tensors.tracks is not None
    assert tensors.tracks.tolist() == [4, 5, 6]
    assert tensors.names() == found.names()
    assert found.to("meta").boxes.device.type == "meta"


def test_masks_are_as_large_as_the_picture() -> None:
    found = result(masks=np.ones((3, 2, 2), np.float32))
    assert found.masks is not None
    assert found.masks.shape == (3, 40, 60)
    assert found[0].mask is not None
    # All of the box is the object's: from pixel 1 to 11 across and 2 to 22 down, give or take the border.
    assert found[0].mask[4:20, 3:9].all()
    assert found[0].mask.sum() <= 11 * 21
    assert result().masks is None
    assert result()[0].mask is None


@pytest.mark.parametrize(("method", "library"), [("to_pandas", "pandas"), ("to_supervision", "supervision")])
def test_what_is_not_installed_is_named(method: str, library: str, monkeypatch: pytest.MonkeyPatch) -> None:
    import sys

    monkeypatch.setitem(sys.modules, library, None)
    with pytest.raises(bw.DataError, match=f"pip install {library}"):
        getattr(result(), method)()


def test_a_result_without_objects_is_true() -> None:
    assert result()[:0]


def test_a_truth_value_is_no_selection() -> None:
    """`found.names() == "cat"` compares a list with a text: False, and False is 0 in Python."""
    found = result()
    with pytest.raises(TypeError, match="found one boolean"):
        found[found.names() == "cat"]
    assert found[torch.tensor(1)].name == found[np.array(1)].name == found[1].name
    assert [one.name for one in found[np.array(found.names()) == "cat"]] == ["cat", "cat"]


def test_keypoints_have_scores_and_faint_ones_are_not_drawn() -> None:
    points = np.array([[[5, 5], [5, 15]], [[30, 10], [40, 30]], [[10, 30], [50, 30]]], np.float32)
    scores = np.array([[0.9, 0.3], [0.8, 0.299], [0.0, 1.0]], np.float32)
    depths = scores * 10
    found = result(keypoints=points, keypoint_scores=scores, keypoint_depths=depths)
    assert found.keypoint_scores is scores
    one = found[1]
    assert one.keypoint_scores is not None
    assert one.keypoint_scores.tolist() == scores[1].tolist()
    assert found.to_coco()[1]["keypoints"] == [30, 10, 0.8, 40, 30, 0.299]
    assert result(keypoints=points).to_coco()[1]["keypoints"] == [30, 10, 1, 40, 30, 1]
    tensors = found.to()
    assert tensors.keypoint_scores is not None
    back = tensors.arrays()
    assert back.keypoint_scores is not None
    assert back.keypoint_depths is not None
    np.testing.assert_array_equal(back.keypoint_scores, scores)
    np.testing.assert_array_equal(back.keypoint_depths, depths)
    # A faint point leaves the picture as a picture without it is, and the line to it is not drawn.
    for edges in ((), ((0, 1),)):
        drawn = draw_detections(found.image, found.objects, 0.0, 10, edges=edges)
        seen = np.concatenate([points, np.array([[[1], [1]], [[1], [0]], [[0], [1]]], np.float32)], -1)
        wanted = draw_detections(found.image, replace(found.objects, keypoints=None), 0.0, 10)
        assert (drawn != wanted).any()
        assert (drawn != draw_detections(found.image, result(keypoints=points).objects, 0.0, 10, edges=edges)).any()
        labels, names = found.labels[::-1].tolist(), [f"{one.name} {one.score:.2f}" for one in found][::-1]
        by_hand = draw_boxes(found.image, found.boxes[::-1], labels, names, Details(keypoints=seen[::-1], edges=edges))
        np.testing.assert_array_equal(drawn, by_hand)


def test_embeddings() -> None:
    """Of each object, in its rows for files and through tensors and back."""
    embeddings = np.array([[0.6, 0.8], [1, 0], [0, -1]], np.float32)
    found = result(embeddings=embeddings)
    assert found.embeddings is embeddings
    assert found[1].embedding is not None
    assert found[1].embedding.tolist() == [1, 0]
    assert [row["embedding"] for row in found.to_coco()] == [[0.6, 0.8], [1, 0], [0, -1]]
    np.testing.assert_array_equal(found.to().arrays().embeddings, embeddings)
    assert result().embeddings is None
    assert result()[0].embedding is None


def test_the_first_channels_of_more_are_drawn() -> None:
    found = result()
    more = bw.Result(found.objects, np.concatenate([found.image, found.image[..., :2] // 2], 2))
    assert np.array_equal(np.asarray(more.plot()), np.asarray(found.plot()))
