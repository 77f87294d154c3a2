"""SRN, AlignDet and RefineDet++ through the whole loop: train, resume, evaluate, predict; and a batch in parts."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

import boxwright as bw
from boxwright.config.load import parse_message
from boxwright.nn.criteria.criterion import LossTerm
from boxwright.pipeline.message import TrainEvalPipelineConfig as Pipeline
from boxwright.types import Targets

BACKBONE = 'feature_extractor { type: "mobilenet_v2" depth_multiplier: 0.1 }'
MODELS = {
    "srn": f"""srn {{ num_classes: 4 RESIZER depth: 8 {BACKBONE} two_step_classification {{ }}
      two_step_regression {{ }} }}""",
    "align_det": f"""align_det {{ num_classes: 4 RESIZER depth: 8 num_layers_before_predictor: 1 {BACKBONE}
      step {{ depth: 8 kernel_size: 3 }} step {{ depth: 8 kernel_size: 3 sampling: ROI_ALIGN }} }}""",
    "refinedet++": """refinedet { num_classes: 4 RESIZER align_second_step: true
      feature_extractor { type: "refinedet_mobilenet_v2" depth_multiplier: 0.1 } transfer_connection { depth: 8 }
      anchor_refinement { filter_levels: 3 refine_levels: [5, 6] } }""",
}
RESIZER = "image_resizer { fixed_shape_resizer { height: 64 width: 64 } }"


def configuration(name: str, data: Path, more: str = "") -> Pipeline:
    text = f"""model {{ {MODELS[name].replace("RESIZER", RESIZER)} }}
    train_config {{ batch_size: 4 num_steps: 2 {more} gradient_clipping_by_norm: 10
      optimizer {{ adam_optimizer {{ learning_rate {{ constant_learning_rate {{ learning_rate: 0.001 }} }} }} }} }}
    train_input_reader {{ label_map_path: "{data}/label_map.pbtxt" tf_record_input_reader {{ input_path: "{data}/val.record" }} }}
    eval_config {{ metrics_set: ["coco_detection_metrics", "wider_face_metrics"] }}
    eval_input_reader {{ label_map_path: "{data}/label_map.pbtxt" tf_record_input_reader {{ input_path: "{data}/val.record" }} }}"""
    return parse_message(text, Pipeline)


@pytest.mark.slow  # their networks and criteria train in tests of their own
@pytest.mark.parametrize("name", MODELS)
def test_trained_resumed_evaluated_and_used(name: str, shapes_data: Path, tmp_path: Path) -> None:
    """Two steps at once are the same as one and one; what comes out can be evaluated and used."""
    settings = bw.RunSettings(evaluate=False, workers=0, preflight=False, device="cpu", summarize_every_n=2)
    whole, halves = configuration(name, shapes_data), configuration(name, shapes_data)
    assert bw.train(whole, tmp_path / "whole", settings).step == 2
    assert halves.train_config is not None
    halves.train_config.num_steps = 1
    assert bw.train(halves, tmp_path / "halves", settings).step == 1
    assert bw.train(configuration(name, shapes_data), tmp_path / "halves", settings).step == 2
    detectors = []
    for folder in ("whole", "halves"):
        detector = bw.build_detector(whole)
        bw.load_weights(detector, tmp_path / folder)
        detectors.append(detector.network.state_dict())
    assert all(torch.equal(one, other) for one, other in zip(*(d.values() for d in detectors), strict=True))
    metrics = bw.evaluate(whole, tmp_path / "whole")
    assert "DetectionBoxes_Precision/mAP" in metrics
    assert any(name.startswith("Loss/") for name in metrics)


@pytest.mark.slow_except("align_det")
@pytest.mark.parametrize("name", MODELS)
def test_a_batch_in_parts_costs_what_it_costs_whole(name: str, shapes_data: Path) -> None:
    torch.manual_seed(0)
    detector = bw.build_detector(configuration(name, shapes_data)).eval()
    inputs = torch.randn(3, 3, 64, 64)
    sizes = torch.tensor([[64, 64], [50, 64], [64, 40]])
    boxes = torch.tensor([[[8.0, 8, 30, 32], [30, 30, 60, 60]], [[5, 5, 20, 25], [0, 0, 0, 0]], [[0, 0, 0, 0]] * 2])
    valid = torch.tensor([[True, True], [True, False], [False, False]])
    targets = Targets(boxes, torch.tensor([[0, 3], [1, 0], [0, 0]]), valid.float(), valid)
    with torch.no_grad():
        whole = detector.criterion(detector.predict(inputs, sizes), targets)
        sums = dict.fromkeys(whole, torch.zeros(2))
        for i in range(3):
            part = detector.criterion(detector.predict(inputs[i : i + 1], sizes[i : i + 1]), targets.rows(i, i + 1))
            for term, value in part.items():
                assert isinstance(value, LossTerm)
                assert value.count is not None
                sums[term] = sums[term] + torch.stack([value.total, value.count])
    for term, value in whole.items():
        assert value.count is not None
        assert torch.allclose(sums[term], torch.stack([value.total, value.count]), rtol=1e-4), term
