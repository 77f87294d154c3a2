"""Record what transformers detects with D-FINE's weights in the made image: a known answer of published weights.

    python -m tests.golden.known_answers FILE OUT_FOLDER

FILE is a `.pth` of D-FINE's authors or transformers' `model.safetensors`; the recording's name is its SHA-256. Needs the
group `oracles`. The network, its constants and the choice of the best queries are transformers' own; ours is only what
renames the tensors, which it refuses to load if one is missing. transformers has no SiLU in the layers of boxes, so
DEIM's and RT-DETRv4's weights have to be recorded with their authors' code.
"""

import hashlib
import json
import sys
import tempfile
from importlib import import_module
from pathlib import Path
from typing import Any

import torch

import boxwright as bw
from boxwright.weights.export_weights import write_transformers
from boxwright.weights.known_answers import made_image

_KEPT = 8


def record(file: Path, out: Path, model: bw.Model | None = None) -> Path:
    """Write a file's recording into a folder, and return its path; `model` is the opened file, if it is open."""
    transformers: Any = import_module("transformers")
    model = model or bw.load(file, device="cpu")
    size = model.detector.preprocessor.resizer.output_size
    if size is None:
        raise SystemExit(f"{file}: its inputs have no fixed size")
    height, width = size
    with tempfile.TemporaryDirectory() as folder:
        write_transformers(model.detector, model.config, Path(folder))
        theirs, told = transformers.DFineForObjectDetection.from_pretrained(folder, output_loading_info=True)
    if any(told.values()):
        raise SystemExit(f"transformers does not load all of it: {told}")
    pixels = torch.from_numpy(made_image(height, width)).permute(2, 0, 1)[None].float() / 255
    with torch.inference_mode():
        outputs: Any = theirs.eval()(pixel_values=pixels)
    scores, places = outputs.logits[0].sigmoid().flatten().topk(_KEPT)
    queries, labels = places // outputs.logits.shape[-1], places % outputs.logits.shape[-1]
    centers, sides = outputs.pred_boxes[0][queries].split(2, dim=-1)
    corners = torch.cat([centers - sides / 2, centers + sides / 2], -1) * torch.tensor([width, height] * 2)
    rows = [
        {"label": label, "score": round(score, 6), "box": [round(side, 3) for side in box]}
        for label, score, box in zip(labels.tolist(), scores.tolist(), corners.tolist(), strict=True)
    ]
    content = {
        "recorded_with": f"transformers {transformers.__version__}, torch {torch.__version__}, float32",
        "height": height,
        "width": width,
        "score_tolerance": 1e-3,
        "box_tolerance": 0.5,
        "detections": rows,
    }
    path = out / f"{hashlib.sha256(file.read_bytes()).hexdigest()}.json"
    path.write_text(json.dumps(content, indent=1) + "\n")
    return path


if __name__ == "__main__":
    print(record(Path(sys.argv[1]), Path(sys.argv[2])))  # noqa: T201
