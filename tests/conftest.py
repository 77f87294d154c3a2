"""What the tests share: the recordings, and a small detector."""

from __future__ import annotations

import atexit
import gc
import logging
import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from numpy.typing import NDArray
from PIL import Image

import boxwright as bw

if TYPE_CHECKING:
    # Imported where they are used: pytest-xdist's first process reads this file and runs no test, and the others wait.
    import torch

    from boxwright.types import Array, Detections

GOLDEN = Path(__file__).parent / "golden"

# Python's own threshold of 700 objects makes collecting garbage a seventh of the time until the first test.
gc.set_threshold(20_000, 20, 20)
# Albumentations asks the network for newer versions when it is imported.
os.environ["NO_ALBUMENTATIONS_UPDATE"] = "1"
# Kernels for GPUs run in Triton's interpreter where there is none; it is read when they are imported.
if not any(Path(sign).exists() for sign in ("/dev/nvidiactl", "/dev/dxg", "/proc/driver/nvidia")):
    os.environ["TRITON_INTERPRET"] = "1"
# MLflow reports its use over the network otherwise, from when it is imported.
os.environ["MLFLOW_DISABLE_TELEMETRY"] = "true"
# A shell that starts a job in the background lets it ignore Ctrl-C, and so would the processes that the tests interrupt.
signal.signal(signal.SIGINT, signal.default_int_handler)
# As nohup lets this process ignore SIGHUP. This one outlives its terminal still: a handler is not inherited, unlike a
# signal that is ignored.
if signal.getsignal(signal.SIGHUP) == signal.SIG_IGN:
    signal.signal(signal.SIGHUP, lambda *_: None)


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark those cases slow that `slow_cases` names, and those that `slow_except` does not."""
    for item in items:
        case = item.callspec.id if isinstance(item, pytest.Function) and hasattr(item, "callspec") else None
        named = [mark for mark in item.iter_markers("slow_cases") if case in mark.args]
        left_out = [mark for mark in item.iter_markers("slow_except") if case not in mark.args]
        if named or left_out:
            item.add_marker(pytest.mark.slow)


def pytest_collection_finish() -> None:
    """Leave what is there before the first test out of each search for garbage: a million objects that stay."""
    gc.freeze()
    atexit.register(gc.unfreeze)  # libraries count what is left at the end
    # Otherwise pytest gives its handlers to each of PyTorch's fifty loggers, six times a test.
    for name, logger in logging.root.manager.loggerDict.items():
        if name.startswith("torch") and isinstance(logger, logging.Logger):
            logger.propagate = True


def pytest_terminal_summary(terminalreporter: Any) -> None:
    """Say how many recordings were matched, and which could not be tried."""

    def reports(outcome: str) -> list[pytest.TestReport]:
        return [report for report in terminalreporter.stats.get(outcome, []) if "/parity/" in report.nodeid]

    about_the_folder = ("shipped_folder", "no_test_reads")
    matched = [report for report in reports("passed") if not any(name in report.nodeid for name in about_the_folder)]
    lines = {str(report.longrepr).partition("unsupported: ")[2].rstrip("')") for report in reports("skipped")} - {""}
    if matched or lines:
        terminalreporter.section(f"parity with {os.environ.get('BOXWRIGHT_GOLDEN') or GOLDEN}")
        terminalreporter.write_line(f"{len(matched)} checks matched, {len(lines)} recordings unsupported")
        for line in sorted(lines):
            terminalreporter.write_line(f"  unsupported: {line}")


@pytest.fixture(autouse=True, scope="session")
def _cache_in_tmp(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("BOXWRIGHT_CACHE", str(tmp_path_factory.getbasetemp() / "cache"))
        yield


@pytest.fixture(autouse=True, scope="session")
def _no_power_cuts() -> Iterator[None]:
    """Wait for no disk, which took a tenth of the time.

    It cannot matter: only a power cut loses what was written and not flushed, and no test cuts the power; a process that
    is killed loses none of it. Tests of an fsync that fails put their own in this one's place.
    """
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "fsync", lambda descriptor: None)
        yield


@pytest.fixture(autouse=True, scope="session")
def _quick_pngs() -> Iterator[None]:
    """Compress PNGs in a fifth of the time, which was a third of a short run's.

    It cannot matter: PNG loses nothing at any level, so that each picture that is read back is the same. Only its file is
    larger.
    """
    plain = Image.Image.save

    def save(self: Image.Image, file: Any, format: str | None = None, **options: Any) -> None:
        plain(self, file, format, **({"compress_level": 1} | options if format == "PNG" else options))

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Image.Image, "save", save)
        yield


_BLOCK = 65_521  # a prime: rows of a kernel that repeats so many numbers begin at different ones


def _truncated_normal(
    tensor: torch.Tensor,
    mean: float = 0.0,
    std: float = 1.0,
    a: float = -2.0,
    b: float = 2.0,
    generator: torch.Generator | None = None,
) -> torch.Tensor:
    """Draw as `torch.nn.init.trunc_normal_`, whose inverse error function takes thirty times as long.

    Of a large tensor one block is drawn, and repeated.
    """
    import torch

    with torch.no_grad():
        if tensor.is_meta:
            return tensor
        block = tensor.new_empty(min(tensor.numel(), _BLOCK)).normal_(mean, std, generator=generator)
        while bool((outside := (block < a) | (block > b)).any()):
            block[outside] = block[outside].normal_(mean, std, generator=generator)
        times = -(-tensor.numel() // _BLOCK)
        return tensor.copy_(block.repeat(times)[: tensor.numel()].view(tensor.shape))


def _zeros(tensor: torch.Tensor, *_: Any, **__: Any) -> torch.Tensor:
    import torch

    with torch.no_grad():
        return tensor if tensor.is_meta else tensor.zero_()


_DRAWN = ("trunc_normal_", "normal_", "uniform_", "xavier_uniform_", "kaiming_normal_", "kaiming_uniform_")


@contextmanager
def nothing_drawn() -> Iterator[None]:
    """Let first weights be zeros: of detectors whose weights are all loaded, or not looked at."""
    import torch

    with pytest.MonkeyPatch.context() as patch:
        for name in _DRAWN:
            patch.setattr(torch.nn.init, name, _zeros)
        yield


@pytest.fixture(autouse=True, scope="module")
def _quick_initializers(request: pytest.FixtureRequest) -> Iterator[None]:
    """Draw first weights quickly: real configurations' took a twelfth of the tests' time.

    It cannot matter where any first weights do: for shapes, files, and losses that are compared with one another.
    A module whose OWN_INITIALIZERS is set draws them as other processes do, with which it compares; one whose
    WEIGHTS_ARE_LOADED is set draws none, as it replaces them all.
    """
    if getattr(request.module, "WEIGHTS_ARE_LOADED", False):
        with nothing_drawn():
            yield
        return
    import torch

    with pytest.MonkeyPatch.context() as patch:
        if not getattr(request.module, "OWN_INITIALIZERS", False):
            patch.setattr(torch.nn.init, "trunc_normal_", _truncated_normal)
        yield


def xyxy(boxes: NDArray[Any]) -> torch.Tensor:
    """Turn recorded ymin, xmin, ymax, xmax into our order."""
    import torch

    return torch.from_numpy(np.ascontiguousarray(boxes[..., [1, 0, 3, 2]]))


def yxyx(boxes: torch.Tensor) -> NDArray[Any]:
    return np.asarray(boxes.detach().numpy()[..., [1, 0, 3, 2]])


def found_objects(
    boxes: torch.Tensor, scores: torch.Tensor, labels: torch.Tensor, size: tuple[int, int], **known: Any
) -> Detections[Array]:
    return bw.Detections(boxes, scores, labels, size, **known).arrays()


def assert_close(actual: Any, expected: NDArray[Any], absolute: float = 1e-5, relative: float = 1e-4) -> None:
    """Compare with the tolerance of the recordings."""
    array = np.asarray(actual)
    assert array.shape == expected.shape
    np.testing.assert_allclose(array, expected, atol=absolute, rtol=relative)


def extra_folder(variable: str) -> Path | None:
    """Return the folder that an environment variable names; None where it is not set."""
    value = os.environ.get(variable)
    return Path(value) if value else None


SMALL_MODEL = """
model {
  ssd {
    num_classes: 4
    image_resizer { fixed_shape_resizer { height: 64 width: 64 } }
    feature_extractor {
      type: "ssd_mobilenet_v2_fpn_keras"
      depth_multiplier: 0.25
      min_depth: 8
      use_depthwise: true
      override_base_feature_extractor_hyperparams: true
      fpn { min_level: 3 max_level: 5 additional_layer_depth: 32 }
      conv_hyperparams {
        activation: RELU_6
        regularizer { l2_regularizer { weight: 0.00004 } }
        initializer { variance_scaling_initializer { factor: 2.0 mode: FAN_OUT } }
        batch_norm { decay: 0.9 epsilon: 0.001 scale: true }
      }
    }
    anchor_generator {
      multiscale_anchor_generator { min_level: 3 max_level: 5 anchor_scale: 2.0 aspect_ratios: 1.0 scales_per_octave: 2 }
    }
    box_predictor {
      weight_shared_convolutional_box_predictor {
        depth: 32
        num_layers_before_predictor: 1
        kernel_size: 3
        use_depthwise: true
        share_prediction_tower: true
        class_prediction_bias_init: -4.6
        conv_hyperparams {
          activation: RELU_6
          initializer { random_normal_initializer { stddev: 0.01 } }
          batch_norm { decay: 0.9 epsilon: 0.001 scale: true }
        }
      }
    }
    box_coder { faster_rcnn_box_coder { } }
    similarity_calculator { iou_similarity { } }
    matcher { argmax_matcher { matched_threshold: 0.5 unmatched_threshold: 0.5 force_match_for_each_row: true } }
    encode_background_as_zeros: true
    loss {
      classification_loss { weighted_sigmoid_focal { gamma: 2.0 alpha: 0.25 } }
      localization_loss { weighted_smooth_l1 { } }
    }
    post_processing {
      batch_non_max_suppression { score_threshold: 0.01 iou_threshold: 0.5 max_detections_per_class: 20 max_total_detections: 50 }
      score_converter: SIGMOID
    }
  }
}
"""

# Half the time of a training step.
FEWER_LAYERS = (
    SMALL_MODEL.replace("ssd_mobilenet_v2_fpn_keras", "timm/test_resnet.r160_in1k")
    .replace("      depth_multiplier: 0.25\n      min_depth: 8\n      use_depthwise: true\n", "")
    .replace("      override_base_feature_extractor_hyperparams: true\n", "")
)

SMALL_TRAINING = """
train_config {
  batch_size: 4
  num_steps: 6
  optimizer {
    momentum_optimizer { learning_rate { constant_learning_rate { learning_rate: 0.01 } } }
    use_moving_average: false
  }
  data_augmentation_options { random_horizontal_flip { } }
}
"""


@pytest.fixture(scope="session")
def shapes_data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a little made-up data in all three formats."""
    from boxwright.data.convert import write_coco, write_tfrecords, write_voc
    from boxwright.data.shapes import ShapesDataset

    folder = tmp_path_factory.mktemp("shapes")
    dataset = ShapesDataset(12, seed=5, size=(64, 80))
    write_tfrecords(dataset, folder / "train.record", num_shards=2)
    write_tfrecords(ShapesDataset(6, seed=6, size=(64, 80)), folder / "val.record")
    write_coco(dataset, folder / "coco" / "instances.json")
    with pytest.warns(UserWarning, match="masks are dropped"):
        write_voc(dataset, folder / "voc")
    return folder


@pytest.fixture
def small_config(shapes_data: Path, tmp_path: Path) -> Path:
    """A whole configuration that trains in seconds."""
    path = tmp_path / "pipeline.config"
    path.write_text(small_config_text(shapes_data))
    return path


@pytest.fixture
def mobilenet_config(shapes_data: Path, tmp_path: Path) -> Path:
    """The same with the original's MobileNetV2, for tests of its layers and names."""
    path = tmp_path / "pipeline.config"
    path.write_text(small_config_text(shapes_data, SMALL_MODEL))
    return path


def small_config_text(shapes_data: Path, model: str = FEWER_LAYERS) -> str:
    """Return the text of a whole configuration that trains in seconds."""
    readers = f"""
train_input_reader {{
  label_map_path: "{shapes_data}/label_map.pbtxt"
  tf_record_input_reader {{ input_path: "{shapes_data}/train.record-?????-of-00002" }}
}}
eval_config {{ batch_size: 2 num_visualizations: 2 }}
eval_input_reader {{
  label_map_path: "{shapes_data}/label_map.pbtxt"
  shuffle: false
  tf_record_input_reader {{ input_path: "{shapes_data}/val.record" }}
}}
"""
    return model + SMALL_TRAINING + readers


class Silent(logging.Handler):
    """Hears a run and what it logs, for tests; each overrides what it needs."""

    def __init__(self) -> None:
        super().__init__()
        logger = logging.getLogger("boxwright")
        logger.setLevel(logging.INFO)
        logger.addHandler(self)

    def emit(self, record: logging.LogRecord) -> None:
        mark = "warning: " if record.levelno >= logging.WARNING else ""
        self.message(f"{mark}{record.getMessage()}")

    def on_event(self, step: int, event: Any) -> None:
        from boxwright.training.log import Evaluated, Scalars

        if isinstance(event, Scalars) and "steps_per_sec" in event.values:
            self.step(step)
        elif isinstance(event, Evaluated):
            self.evaluated(step, event)

    def message(self, text: str) -> None: ...

    def step(self, step: int) -> None: ...

    def evaluated(self, step: int, event: Any) -> None: ...


@pytest.fixture(autouse=True)
def _no_handlers_left() -> Iterator[None]:
    yield
    logger = logging.getLogger("boxwright")
    for handler in [handler for handler in logger.handlers if isinstance(handler, Silent)]:
        logger.removeHandler(handler)
