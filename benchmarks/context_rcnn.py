"""What context is worth: AP on dark frames of made-up camera traps with context, and with none.

    python benchmarks/context_rcnn.py --seeds 1 2

Every camera sees one kind of animal, whose color only its bright frames show. A Faster R-CNN learns the single frames;
`boxwright context build` embeds their best boxes; a Context R-CNN, which starts from its weights, learns from both.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from pathlib import Path
from string import Template

sys.path.insert(0, str(Path(__file__).parent.parent))

from tests.camera_traps import frames_of, write_frames
from typer.testing import CliRunner  # of the repository's tests

import boxwright as bw
from boxwright.cli.main import app
from boxwright.data.tf_example import read_features, text_feature
from boxwright.data.tfrecord import TFRecordFile, write_records

HYPERPARAMS = (
    "regularizer { l2_regularizer { weight: 0.00004 } } initializer { truncated_normal_initializer { stddev: 0.03 } }"
)
TEXT = f"""model {{ faster_rcnn {{
  num_classes: 4
  image_resizer {{ fixed_shape_resizer {{ height: 96 width: 96 }} }}
  $context
  feature_extractor {{ type: "timm/resnet10t" conv_hyperparams {{ {HYPERPARAMS} activation: RELU }}
    fpn {{ min_level: 3 max_level: 5 additional_layer_depth: 64 }} }}
  first_stage_anchor_generator {{ multiscale_anchor_generator {{
    min_level: 3 max_level: 5 anchor_scale: 4 aspect_ratios: [0.7, 1, 1.4] scales_per_octave: 1
    normalize_coordinates: false }} }}
  first_stage_box_predictor_conv_hyperparams {{ {HYPERPARAMS} }}
  first_stage_box_predictor_depth: 64
  first_stage_minibatch_size: 64
  first_stage_max_proposals: 16
  second_stage_batch_size: 16
  initial_crop_size: 7 maxpool_kernel_size: 1 maxpool_stride: 1
  second_stage_box_predictor {{ mask_rcnn_box_predictor {{ fc_hyperparams {{ op: FC {HYPERPARAMS} }} }} }}
  second_stage_post_processing {{
    batch_non_max_suppression {{ iou_threshold: 0.5 max_detections_per_class: 8 max_total_detections: 8 }}
    score_converter: SOFTMAX }}
}} }}
train_config {{ batch_size: 8 num_steps: $steps $fine_tune
  optimizer {{ adam_optimizer {{ learning_rate {{ cosine_decay_learning_rate {{
    learning_rate_base: 0.001 total_steps: $steps warmup_learning_rate: 0.0001 warmup_steps: 20 }} }} }} }}
  gradient_clipping_by_norm: 10 }}
train_input_reader {{ label_map_path: "$folder/label_map.pbtxt" $reader $sequences
  tf_record_input_reader {{ input_path: "$folder/$train" }} }}
eval_config {{ batch_size: 8 num_visualizations: 0 }}
eval_input_reader {{ label_map_path: "$folder/label_map.pbtxt" $reader shuffle: false
  tf_record_input_reader {{ input_path: "$folder/$eval" }} }}
"""
CONTEXT = "context_config { context_feature_length: 1033 max_num_context_features: 16 attention_temperature: 0.1 }"
AP50 = "DetectionBoxes_Precision/mAP@.50IOU"


def main() -> None:
    """Train and evaluate for each seed; print a line each and write JSON if asked."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, nargs="+", default=[1, 2])
    parser.add_argument("--cameras", type=int, default=60, help="Cameras to train on; a third as many to evaluate.")
    parser.add_argument("--steps", type=int, nargs=2, default=[300, 300], help="Without context, and with it.")
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    rows = []
    for seed in arguments.seeds:
        with tempfile.TemporaryDirectory() as folder:
            rows.append({"seed": seed, **measured(Path(folder), seed, arguments.cameras, arguments.steps)})
        print(json.dumps(rows[-1]), flush=True)
    if arguments.json:
        arguments.json.write_text(json.dumps(rows, indent=1) + "\n")


def measured(folder: Path, seed: int, cameras: int, steps: list[int]) -> dict[str, float]:
    """Return AP50 on dark frames: of the detector of single frames, with context, and with none in its place."""
    held_out = frames_of(max(cameras // 3, 2), 8, seed=2000 + seed)
    write_frames(folder / "train.record", frames_of(cameras, 8, seed=1000 + seed))
    write_frames(folder / "eval.record", held_out)
    dark = {frame.sample.id for frame in held_out if frame.dark}
    _keep(folder / "eval.record", folder / "dark.record", dark)
    single = _config(folder, "single", reader="", train="train.record", eval="dark.record", steps=steps[0])
    bw.train(single, folder / "single", seed=seed)
    _build(folder, "train", "tf_sequence_example")
    _build(folder, "eval", "tf_example")
    _keep(folder / "with_eval/context.record-00000-of-00001", folder / "dark_context.record", dark)
    tuned = f'fine_tune_checkpoint: "{folder}/single" fine_tune_checkpoint_type: "detection"'
    tuned += " load_all_detection_checkpoint_vars: true"
    context = _config(
        folder, "context", context=CONTEXT, fine_tune=tuned, train="with_train/context.record-*", steps=steps[1],
        reader="load_context_features: true", eval="dark_context.record", sequences="input_type: TF_SEQUENCE_EXAMPLE",
    )  # fmt: skip
    bw.train(context, folder / "context", seed=seed)
    without = "eval_input_reader[0].load_context_features=false"
    return {
        "single": bw.evaluate(folder / "single", config=single)[AP50],
        "with_context": bw.evaluate(folder / "context", config=context)[AP50],
        "context_zeroed": bw.evaluate(folder / "context", config=context, overrides=[without])[AP50],
    }


def _config(folder: Path, name: str, **values: object) -> Path:
    """Write a configuration; return its path."""
    known = {"context": "", "fine_tune": "", "sequences": "", "reader": "", "folder": folder}
    path = folder / f"{name}.config"
    path.write_text(Template(TEXT).substitute(known | values))
    return path


def _build(folder: Path, name: str, output_type: str) -> None:
    words = ["context", "build", folder / f"{name}.record", "--checkpoint", folder / "single"]
    words += ["--out", folder / f"with_{name}", "--output_type", output_type]
    result = CliRunner().invoke(app, [str(word) for word in words])
    if result.exit_code:
        raise SystemExit(result.output or repr(result.exception))


def _keep(source: Path, target: Path, ids: set[str]) -> None:
    """Write the records of some images."""
    file = TFRecordFile(source)
    records = (file[number] for number in range(len(file)))
    write_records(
        target, [one for one in records if text_feature(read_features(one, ""), "image/source_id", "") in ids]
    )


if __name__ == "__main__":
    main()
