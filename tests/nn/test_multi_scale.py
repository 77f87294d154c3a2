"""Many views of an image: where boxes of a mirror image lie, which are kept, how they are merged."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

import boxwright as bw
from boxwright.config.load import parse_message
from boxwright.nn.multi_scale import MULTI_SCALE, InputSize, MultiScale, MultiScaleDetector, at_scales
from boxwright.nn.postprocessing.nms import Voting
from boxwright.nn.suppression.image_by_image import soft_vote, vote
from boxwright.pipeline import messages as m
from tests.center_nets import CENTER_NET, KEYPOINT_LABEL_MAP, of_one_class

BOXES = torch.tensor([[0.0, 0, 10, 10], [0.0, 0, 10, 8], [50.0, 0, 60, 10], [0.0, 0, 10, 4]])
SCORES = torch.tensor([0.6, 0.2, 0.9, 0.1])


def test_voting_by_hand() -> None:
    """The second overlaps the first by 0.8, the fourth by 0.4 alone; the third is far."""
    boxes, scores, best = vote(BOXES, SCORES, 0.45)
    assert best.tolist() == [2, 0, 3]
    assert scores.tolist() == pytest.approx([0.9, 0.6, 0.1])
    # (10 × 0.6 + 8 × 0.2) ÷ 0.8 = 9.5
    assert boxes.tolist() == [[50, 0, 60, 10], pytest.approx([0, 0, 10, 9.5]), [0, 0, 10, 4]]


def test_soft_voting_by_hand() -> None:
    """The best is lowered to nothing, the second by its overlap, to 0.2 × 0.2; lone ones stay as they are."""
    boxes, scores, _ = soft_vote(BOXES, SCORES, 0.45, 0.03)
    assert sorted(scores.tolist()) == pytest.approx([0.04, 0.1, 0.6, 0.9])
    assert boxes[scores.argsort()][0].tolist() == [0, 0, 10, 8]
    assert len(soft_vote(BOXES, SCORES, 0.45, 0.05)[1]) == 3


@pytest.mark.parametrize("soft", [False, True])
def test_voting_of_nothing_and_of_no_area(soft: bool) -> None:
    def voted(boxes: torch.Tensor, scores: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return soft_vote(boxes, scores, 0.45, 0.01) if soft else vote(boxes, scores, 0.45)

    assert [part.shape[0] for part in voted(torch.zeros(0, 4), torch.zeros(0))] == [0, 0, 0]
    boxes, scores, _ = voted(torch.tensor([[3.0, 3, 3, 3]]), torch.tensor([0.5]))
    assert boxes.tolist() == [[3, 3, 3, 3]]
    assert scores.tolist() == [0.5]


def test_what_an_input_size_keeps() -> None:
    boxes = torch.tensor([[0.0, 0, 32, 10], [0.0, 0, 33, 10], [0.0, 0, 100, 160], [0.0, 0, 200, 159]])
    assert InputSize(192, 192, larger_than=32).keeps(boxes).tolist() == [False, True, True, True]
    assert InputSize(384, 384, smaller_than=160).keeps(boxes).tolist() == [True] * 4
    assert InputSize(512, 512, smaller_than=96).keeps(boxes).tolist() == [True, True, False, False]


def test_size_follows_the_image() -> None:
    look = InputSize(320, 192)
    assert look.size(torch.zeros(3, 480, 640)) == (192, 320)
    assert look.size(torch.zeros(3, 640, 480)) == (320, 192)


def test_presets() -> None:
    """The authors' sizes; all fit a stride of 64."""
    looks = {name: rules.input_sizes for name, rules in MULTI_SCALE.items() if isinstance(rules, MultiScale)}
    assert set(MULTI_SCALE) - set(looks) == {"srn-2100", "srn-1400"}
    assert [(p.long_side, p.short_side) for p in looks["refinedet320-voc"]] == [
        (320, 320),
        (320, 192),
        *((side, side) for side in (192, 384, 448, 512, 576, 704)),
    ]
    assert len(looks["refinedet320-coco"]) == 9
    assert len(looks["refinedet512-voc"]) == 6
    assert len(looks["refinedet512-coco"]) == 9
    sides = {side for some in looks.values() for p in some for side in (p.long_side, p.short_side)}
    assert all(side % 64 == 0 for side in sides)


def detector_of(resizer: str = "fixed_shape_resizer { height: 64 width: 64 }") -> bw.Detector:
    text = f"""refinedet {{ num_classes: 2 image_resizer {{ {resizer} }} anchor_refinement {{ }}
      feature_extractor {{ type: "refinedet_mobilenet_v2" depth_multiplier: 0.1 }} }}"""
    torch.manual_seed(0)
    return bw.build_detector(parse_message(text, m.DetectionModel))


def in_order(boxes: torch.Tensor) -> torch.Tensor:
    return torch.tensor(sorted(boxes.mul(1000).round().div(1000).tolist()))


def test_one_look_is_the_image_and_its_mirror_image() -> None:
    """Of both, by hand, and nothing merged: the second look's boxes are mirrored back."""
    detector = detector_of()
    image = np.random.default_rng(0).integers(0, 256, (50, 70, 3)).astype(np.uint8)
    many = MultiScaleDetector(detector, MultiScale((InputSize(64, 64),), Voting(1.1), 10_000))
    found = many.detect([image])[0]
    plain, mirrored = detector.detect([image])[0], detector.detect([image[:, ::-1].copy()])[0]
    assert len(found) == len(plain) + len(mirrored)
    back = mirrored.boxes[:, [2, 1, 0, 3]] * torch.tensor([-1, 1, -1, 1]) + torch.tensor([70, 0, 70, 0])
    wanted = torch.cat([plain.boxes, back])
    assert torch.allclose(in_order(found.boxes), in_order(wanted), atol=2e-3)
    assert found.image_size == (50, 70)
    assert (found.scores.diff() <= 0).all()


@pytest.mark.slow
def test_looks_see_other_sizes_and_the_detector_stays_as_it_was() -> None:
    detector = detector_of().train()
    seen: list[tuple[int, ...]] = []
    detector.network.register_forward_pre_hook(lambda _, inputs: seen.append(tuple(inputs[0].shape[-2:])))
    rules = MultiScale((InputSize(64, 64), InputSize(128, 64), InputSize(192, 192, smaller_than=20)), Voting(), 7)
    found = MultiScaleDetector(detector, rules).detect([np.zeros((90, 60, 3), np.uint8)])[0]
    assert seen == [(64, 64)] * 2 + [(128, 64)] * 2 + [(192, 192)] * 2
    assert len(found) == 7
    assert detector.training
    assert detector.preprocessor.resizer.output_size == (64, 64)


def test_views_are_detected_in_the_precision_of_the_detector() -> None:
    """Whose weights are cast once."""
    image = np.random.default_rng(0).integers(0, 256, (64, 64, 3)).astype(np.uint8)
    detector = detector_of().optimize(dtype=torch.bfloat16)
    many = MultiScaleDetector(detector, MultiScale((InputSize(64, 64),), Voting(1.1), 10_000))
    found, plain = many.detect([image])[0], detector.detect([image])[0]
    assert torch.isin(plain.scores, found.scores).all()


def test_grey_images() -> None:
    grey = np.random.default_rng(0).integers(0, 256, (90, 60), np.uint8)
    looks = MultiScaleDetector(detector_of(), MultiScale((InputSize(64, 64),), Voting()))
    array, tensor, colour = looks.detect([grey, torch.from_numpy(grey), np.repeat(grey[..., None], 3, 2)])
    assert torch.equal(array.boxes, tensor.boxes)
    assert torch.equal(array.boxes, colour.boxes)


def test_errors() -> None:
    with pytest.raises(bw.ConfigError, match="'refinedet' is not known; known: refinedet320-voc"):
        at_scales(detector_of(), "refinedet")
    with pytest.raises(bw.ConfigError, match="fixed_shape_resizer"):
        at_scales(detector_of("keep_aspect_ratio_resizer { }"), "refinedet320-voc")
    one = detector_of()
    assert at_scales(one, "") is one


def center_net(text: str) -> bw.Detector:
    torch.manual_seed(0)
    detector = bw.build_detector(parse_message(text, m.DetectionModel)).eval()
    detector.network.stages[0].sizes.output.bias.data.fill_(3.0)  # of 12 pixels
    return detector


def test_a_center_net_at_two_sizes_and_mirrored() -> None:
    """Its peaks vote as boxes of anchors do: what is found in each view, mirrored back by hand."""
    detector = center_net(CENTER_NET)
    image = np.random.default_rng(0).integers(0, 256, (64, 96, 3)).astype(np.uint8)
    many = MultiScaleDetector(detector, MultiScale((InputSize(96, 64),), Voting(1.1), 10_000))
    found = many.detect([image])[0]
    plain, mirrored = detector.detect([image])[0], detector.detect([image[:, ::-1].copy()])[0]
    back = mirrored.boxes[:, [2, 1, 0, 3]] * torch.tensor([-1, 1, -1, 1]) + torch.tensor([96, 0, 96, 0])
    assert len(plain) > 5
    assert torch.allclose(in_order(found.boxes), in_order(torch.cat([plain.boxes, back])), atol=2e-3)
    voted = MultiScaleDetector(detector, MultiScale((InputSize(96, 64), InputSize(128, 96)), Voting())).detect([image])
    assert 0 < len(voted[0]) <= 80
    assert voted[0].image_size == (64, 96)


def test_keypoints_do_not_vote(tmp_path: Path) -> None:
    label_map = tmp_path / "keypoints.pbtxt"
    label_map.write_text(KEYPOINT_LABEL_MAP)
    detector = at_scales(center_net(of_one_class(label_map, "")), "refinedet320-voc")
    with pytest.raises(bw.ConfigError, match="voting merges boxes, but not the keypoints that this detector predicts"):
        detector.detect([np.zeros((64, 96, 3), np.uint8)])


@pytest.mark.slow
@pytest.mark.parametrize("verb", ["evaluate", "predict"])
def test_command_line(small_config: Path, shapes_data: Path, tmp_path: Path, verb: str) -> None:
    from typer.testing import CliRunner

    from boxwright.cli.main import app

    bw.train(
        bw.load_config(small_config, ["train_config.num_steps=1"]),
        tmp_path / "m",
        bw.RunSettings(workers=0, preflight=False, evaluate=False),
    )
    image = next((shapes_data / "voc" / "JPEGImages").glob("*.jpg"))
    arguments = [verb, *([str(image)] if verb == "predict" else []), "--model_dir", str(tmp_path / "m")]
    arguments += ["--out", str(tmp_path / "o"), "--multi_scale", "refinedet320-voc"]
    if verb == "evaluate":
        arguments += ["--sample_1_of_n_eval_examples", "3"]
    result = CliRunner().invoke(app, arguments, catch_exceptions=False)
    assert result.exit_code == 0, result.output
    assert (tmp_path / "o" / "detections.json").is_file()
