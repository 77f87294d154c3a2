"""docs/tensorflow_users.md's table of everything that the original had: whole, fresh, and each row tested."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

from tests.tensorflow_table import DOCUMENT, rewritten, rows_of_fields, table

TESTS = Path(__file__).parent
VERDICTS = {"works", "differs", "no effect", "refused"}
# What a row names → the test that holds it.
TESTED = {
    "`get_configs_from_pipeline_file`, `config_override`": "config/test_text_format.py::test_reads_what_protobuf_reads",
    "`save_pipeline_config`": "training/test_train.py::test_run_leaves_log_configuration_and_metrics",
    "`merge_external_params_with_configs`": "pipeline/test_tf_overrides.py::test_name_sets_what_the_original_sets",
    "`label_map_util`": "data/test_label_map.py::test_recorded_label_map",
    "`model_builder.build`": "families/test_real_configs.py::test_how_many_there_are",
    "`experimental_model`": "api/test_learner.py::test_a_detector_of_ones_own_is_trained_in_place_as_one_of_the_configuration",
    "`external_input_reader`": "data/test_own_dataset.py::test_trains_as_from_records",
    "`model_main_tf2.py`, `model_main.py`": "evaluation/test_watch.py::test_flags_of_model_main_tf2",
    "`train_loop`": "training/test_train.py::test_resumed_run_ends_with_the_same_bits",
    "`eager_train_step`, `train_input`": "api/test_learner.py::test_steps_of_ones_own_loop_are_those_of_train",
    "`eval_continuously`, `legacy/eval.py`": "evaluation/test_watch.py::test_it_waits_evaluates_and_ends_with_the_last_step",
    "`eager_eval_loop`": "evaluation/test_watch.py::test_step_and_learning_rate_stand_beside_the_metrics",
    "`create_class_agnostic_category_index`": "evaluation/test_watch.py::test_data_without_classes_are_counted_without_them",
    "a checkpoint of step 0": "training/test_train.py::test_a_checkpoint_at_the_start",
    "`num_steps: 0`": "training/test_train.py::test_a_run_without_a_number_of_steps_ends_by_time_or_patience",
    "`checkpoint_max_to_keep`": "training/test_faults.py::test_hourly_keepers",
    "`MirroredStrategy`, `MultiWorkerMirroredStrategy`": "training/test_distributed.py::test_two_processes_are_one_with_the_whole_batch",
    "`TPUStrategy`, `tpu_exporters`": "base/test_device.py::test_kinds_that_nobody_tried_are_refused",
    "`performance_summary_exporter`": "training/test_train.py::test_run_leaves_log_configuration_and_metrics",
    "`legacy/train.py`": "training/test_hostile.py::test_tags_of_tensorboard_and_histograms_of_variables",
    "`clip_gradient_norms`": "training/test_step.py::test_clipping_of_each_gradient_is_by_its_own_norm",
    "`HardExampleMiner.summarize`": "training/test_hostile.py::test_what_is_said_of_mining",
    "`freeze_variables`, `update_trainable_variables`, `bias_grad_multiplier`": "training/test_step.py::test_what_is_frozen_stays",
    "`inplace_batchnorm_update`": "families/two_stage/test_network.py::test_inplace_batchnorm_update_by_version",
    "`fine_tune_checkpoint_type`": "weights/test_load_weights.py::test_recorded_checkpoint_by_scope",
    "`tf.train.Checkpoint`": "parity/test_checkpoint.py::test_every_variable",
    "TF1's checkpoints, frozen graphs, zoo archives, TF-Slim's classifiers": "weights/tensorflow/test_first_formats.py::test_an_archive_of_the_zoo",
    "a `model_dir` of TF's": "training/test_resume_tensorflow.py::test_a_run_goes_on_in_tensorflows_folder",
    "`coco_evaluation`, `pascal_evaluation`, `oid_*_detection_metrics`": "parity/test_metrics.py::test_metrics",
    "`lvis_evaluation`": "evaluation/metrics/test_lvis.py::test_equals_its_own_package",
    "`calibration_evaluation`, `coco_evaluation`'s panoptic metrics": "cli/test_commands.py::test_config_check",
    "`coco_keypoint_metrics`": "evaluation/metrics/test_keypoints.py::test_equals_pycocotools",
    "`include_metrics_per_category`, `all_metrics_per_category`": "evaluation/metrics/test_coco.py::test_every_metric_of_each_class_is_that_of_the_class_alone",
    "`super_categories`": "evaluation/metrics/test_coco.py::test_groups_of_classes_have_the_mean_of_their_known_classes",
    "`skip_predictions_for_unlabeled_class`": "evaluation/metrics/test_coco.py::test_detections_of_classes_that_were_not_verified",
    "`force_no_resize`": "evaluation/test_evaluator.py::test_images_at_their_own_size",
    "`ignore_groundtruth`": "evaluation/test_evaluator.py::test_groundtruth_that_is_ignored",
    "`eval_config.use_moving_averages`": "weights/test_load_weights.py::test_moving_averages",
    "`visualization_utils`": "cli/test_strangers.py::test_lines_between_keypoints",
    "`exporter_main_v2.py`, `export_inference_graph.py`": "cli/test_export_commands.py::test_tensorflows_exporter",
    "`export_tflite_graph_tf2.py`, `export_tflite_ssd_graph.py`": "exporters/test_litert.py::test_outputs_are_in_the_order_that_readers_expect",
    "TensorFlow Serving's REST protocol": "inference/serving/test_clients.py::test_requests_as_tensorflow_serving_documents_it",
    "`infer_detections.py`": "inference/test_shards.py::test_a_folder_gives_one_row_an_image",
    "`create_pascal_tf_record.py`, `create_coco_tf_record.py`, `create_oid_tf_record.py`, `tf_record_creation_util`": "data/test_convert.py::test_round_trip_of_shapes",
    "`create_kitti_tf_record.py`": "data/layouts/test_text_labels.py::test_kitti",
    "`create_pet_tf_record.py`": "data/test_convert.py::test_what_a_format_cannot_hold_is_said",
    "`tf_example_decoder`": "data/test_tfrecord.py::test_decodes_to_what_tensorflow_decoded",
    "`preprocessor`'s 39 steps": "parity/test_augment.py::test_every_step_is_recorded",
    "`random_rgb_to_gray`": "data/test_augmentation_and_batches.py::test_gray_keeps_alpha_as_tf_does",
    "`random_adjust_saturation`": "parity/test_augment_distribution.py::test_draws_are_distributed_as_the_original",
    "`autoaugment_image`": "parity/test_augment.py::test_kernel_of_autoaugment",
    "`ssd_random_crop`, `ssd_random_crop_pad`, `random_crop_to_aspect_ratio`": "parity/test_augment.py::test_step_with_the_draws_of_the_original",
    "anchor generators, box coders, matchers, samplers, losses, suppression": "parity/test_components.py::test_component",
    "`SSDMetaArch`": "parity/test_models.py::test_detections",
    "`FasterRCNNMetaArch`, `RFCNMetaArch`, Mask R-CNN": "parity/test_two_stage.py::test_detections",
    "`raw_detection_boxes`, `raw_detection_scores`, `detection_multiclass_scores`, `detection_anchor_indices`": "parity/test_models.py::test_detections",
    "`final_anchors`": "nn/postprocessing/test_raw_detections.py::test_final_anchors_are_what_codes_refer_to",
    "`load_all_detection_checkpoint_vars`": "pipeline/test_tensorflow_version.py::test_all_variables_of_a_detection_checkpoint",
    "`Ssd.mask_head_config`": "config/test_support.py::test_refused_field_stops_the_build",
    "`Hyperparams.group_norm`": "families/shared/test_group_norm.py::test_each_group_of_an_image_by_hand",
    "`CenterNetMetaArch`": "parity/test_center_net.py::test_detections",
    "`DeepMACMetaArch`": "families/center_net/test_deep_masks.py::test_learns_and_detects",
    "`CenterNetDensePoseTargetAssigner`, `detection_surface_coords`": "parity/test_center_net.py::test_detections",
    "`track_estimation_task`": "families/center_net/criteria/test_criterion.py::test_loss_by_hand",
    "`ContextRCNNMetaArch`": "nn/test_context_attention.py::test_layers_and_heads_by_the_definition",
    "`generate_embedding_data.py`, `add_context_to_examples.py`": "inference/test_context_memory.py::test_records_have_the_embeddings_of_their_camera_and_month",
    "`TF_SEQUENCE_EXAMPLE`, `create_ava_actions_tf_record.py`, `seq_example_util`": "data/test_context_records.py::test_the_frames_of_a_sequence",
    "TF-Slim's `vgg_16.ckpt`": "weights/tensorflow/test_vgg16.py::test_the_classifier_starts_a_detector",
    "RefineDet with faces' levels, convolutions before predictors, normalized predictors, a penalty on all weights": "training/test_refinedet.py::test_a_step_of_each_variant",
}


def rows() -> list[list[str]]:
    return [[cell.strip() for cell in row.strip("|").split(" | ")] for row in table(DOCUMENT.read_text())]


def test_no_cell_is_empty() -> None:
    found = rows()
    assert len(found) == len(TESTED) + len(rows_of_fields())
    for row in found:
        assert len(row) == 3, row
        assert all(row), row
        assert row[1] in VERDICTS, row


def test_rows_of_fields_are_the_verdicts_of_the_code() -> None:
    assert DOCUMENT.read_text() == rewritten(DOCUMENT.read_text()), "run python -m tests.tensorflow_table"


def test_every_row_names_its_test() -> None:
    assert [row[0] for row in rows() if not row[0].startswith("fields ")] == list(TESTED)


@pytest.mark.parametrize("name", TESTED)
def test_the_test_exists(name: str) -> None:
    path, _, function = TESTED[name].partition("::")
    tree = ast.parse((TESTS / path).read_text())
    assert function in {node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)}
