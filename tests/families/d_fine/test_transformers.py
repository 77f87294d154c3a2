"""The transformers library as a second oracle: what it computes with the folder that we write for it.

Weights are random and spread, score heads included, so that no two cells tie. Inputs are square: of others, the
positions of the coarsest map's cells differ.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import boxwright as bw
from boxwright.config.load import parse_message
from boxwright.pipeline import messages as m
from boxwright.weights.export_weights import write_transformers

SIDE = 128
MODEL = f"""model {{ d_fine {{ num_classes: 5 SHAPE
  image_resizer {{ fixed_shape_resizer {{ height: {SIDE} width: {SIDE} resize_method: BILINEAR_ANTIALIASED }} }} }} }}"""
SHAPES = {
    "N": "size: N decoder { num_queries: 60 }",
    "S": "size: S decoder { num_queries: 60 }",
    "as X": """size: X encoder { depth: 48 feedforward: 64 block_repeat: 1 } decoder { depth: 32 num_layers: 3 num_queries: 40
      feedforward: 64 } feature_extractor { layout { stem: [8, 16] middle: [8, 8, 16, 16] out: [16, 32, 48, 64]
      blocks: [1, 1, 2, 1] layers: 2 affine: false } }""",
}


def spread(detector: bw.Detector, seed: int = 1) -> bw.Detector:
    """Draw every weight and statistic, normal, of a size that keeps the scale of what layers return."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, value in (*detector.network.named_parameters(), *detector.network.named_statistics().items()):
            drawn = torch.randn(value.shape, generator=generator)
            if name.endswith(("up", "reg_scale")):
                continue
            if value.ndim > 1:
                value.copy_(drawn * value[0].numel() ** -0.5)
            elif name.endswith(("weight", "running_var", "scale")):
                value.copy_(1 + 0.1 * drawn)
            else:
                value.copy_(0.1 * drawn)
    return detector.eval()


@pytest.mark.slow
@pytest.mark.parametrize("shape", SHAPES)
def test_transformers_computes_the_same(shape: str, tmp_path: Path) -> None:
    transformers = pytest.importorskip("transformers", reason="the second oracle: uv pip install --group oracles")
    print(f"transformers {transformers.__version__}")  # noqa: T201
    config = parse_message(MODEL.replace("SHAPE", SHAPES[shape]), m.TrainEvalPipelineConfig)
    detector = spread(bw.build_detector(config))
    write_transformers(detector, config, tmp_path)
    theirs, told = transformers.DFineForObjectDetection.from_pretrained(tmp_path, output_loading_info=True)
    assert not any(told.values()), told
    images = torch.rand(2, 3, SIDE, SIDE, generator=torch.Generator().manual_seed(0))
    with torch.inference_mode():
        wanted = theirs.eval()(pixel_values=images)
        found = detector.predict(images)
    last = found.queries.layers[-1]
    torch.testing.assert_close(last.logits, wanted.logits, rtol=0, atol=3e-5)
    torch.testing.assert_close(last.boxes, wanted.pred_boxes, rtol=0, atol=3e-6)
    assert float(wanted.logits.std()) > 0.1, "spread"
    assert len(wanted.logits.amax(-1)[0].unique()) > 30


@pytest.mark.slow
def test_transformers_prepares_pictures_alike(tmp_path: Path) -> None:
    """Within a gray level: theirs rounds pixels after resizing."""
    transformers: Any = pytest.importorskip("transformers", reason="the second oracle: uv pip install --group oracles")
    config = parse_message(MODEL.replace("SHAPE", SHAPES["N"]), m.TrainEvalPipelineConfig)
    detector = bw.build_detector(config)
    write_transformers(detector, config, tmp_path)
    picture = np.random.default_rng(0).integers(0, 256, (200, 310, 3), dtype=np.uint8)
    wanted = transformers.AutoImageProcessor.from_pretrained(tmp_path)(picture, return_tensors="pt")["pixel_values"]
    found, _ = detector.preprocess(torch.from_numpy(picture[None]))
    assert found.shape == wanted.shape
    assert float((found - wanted).abs().max()) < 1.01 / 255
