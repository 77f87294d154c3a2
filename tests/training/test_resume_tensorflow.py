"""Training goes on where TensorFlow stopped: the recorded checkpoint's weights, moments and step."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import numpy as np
import pytest

import boxwright as bw
from boxwright.config.load import parse_message
from boxwright.nn.tensorflow_names.checkpoint_keys import ATTRIBUTE
from boxwright.pipeline.training import build_training
from boxwright.training.initialize import resume_tensorflow
from boxwright.training.state import TrainingState, new_state
from boxwright.weights.store import read_checkpoint
from boxwright.weights.tensorflow.bundle import Bundle, write_bundle
from boxwright.weights.tensorflow.checkpoint import find_training
from boxwright.weights.tensorflow.variables import tf1_variables, tf2_variables
from tests.conftest import GOLDEN, SMALL_MODEL

RECORDED = GOLDEN / "checkpoint" / "tf2_checkpoint"
MODEL = json.loads((GOLDEN / "checkpoint" / "model.json").read_text())["model_text"]
SLOT = "/.OPTIMIZER_SLOT/optimizer/momentum"


def training(kind: str, average: bool = False) -> str:
    rate = "learning_rate { constant_learning_rate { learning_rate: 0.01 } }"
    readers = 'train_input_reader { coco_input_reader { annotations: "a" image_folder: "b" } }'
    flag = str(average).lower()
    return f"train_config {{ num_steps: 9 batch_size: 4 optimizer {{ {kind} {{ {rate} }} use_moving_average: {flag} }} }} {readers}"


def fresh(text: str) -> TrainingState:
    config = parse_message(text, bw.Pipeline)
    return new_state(bw.build_detector(config), build_training(config))


def test_the_recorded_moments_are_restored() -> None:
    state = fresh(f"model {{ {MODEL} }} {training('momentum_optimizer')}")
    said = resume_tensorflow(state, RECORDED / "ckpt-1", 4)
    bundle = Bundle(RECORDED)
    assert state.step == 4200
    assert state.samples == 4200 * 4
    assert state.optimizer.param_groups[0]["count"] == 1
    parameters = dict(state.detector.network.named_parameters())
    names = tf2_variables(state.detector.network).named
    compared = 0
    for name, parameter in parameters.items():
        key = names[name].key.replace(ATTRIBUTE, SLOT + ATTRIBUTE)
        if key in bundle:
            ours = state.optimizer.state[parameter]["momentum"]
            # Keras's accumulator points where the weight goes, ours against it.
            np.testing.assert_array_equal(-ours.numpy(), names[name].to_ours(bundle[key]))
            compared += 1
    assert compared == len(parameters)
    assert f"momentum: restored for {compared} of {compared} weights" in said


def test_a_run_goes_on_in_tensorflows_folder(mobilenet_config: Path, tmp_path: Path) -> None:
    config = bw.load_config(mobilenet_config, ["model {}", "train_config.num_steps=4202"])
    config.model = parse_message(f"model {{ {MODEL.replace('num_classes: 3', 'num_classes: 4')} }}", bw.Pipeline).model
    shutil.copytree(RECORDED, tmp_path / "m")
    with pytest.raises(bw.CheckpointError, match="scope 'full'.*cannot be restored"):
        bw.train(config, tmp_path / "m", bw.RunSettings(evaluate=False, workers=0, preflight=False))
    fitting = bw.load_config(mobilenet_config)
    detector = bw.build_detector(fitting)
    arrays = {
        variable.key: variable.to_theirs(detector.network.state_dict()[name].numpy())
        for name, variable in tf2_variables(detector.network).named.items()
    }
    counters = {f"step{ATTRIBUTE}": np.array(4, np.int64), f"optimizer/iter{ATTRIBUTE}": np.array(4, np.int64)}
    write_bundle(tmp_path / "n" / "ckpt-3", {**arrays, **counters}, {})
    # What TensorFlow once started from is not needed any more.
    fitting.train_config.fine_tune_checkpoint = "gone/ckpt-0"  # type: ignore[union-attr]  # it has one
    assert bw.train(fitting, tmp_path / "n", bw.RunSettings(evaluate=False, workers=0, preflight=False)).step == 6
    content = read_checkpoint(tmp_path / "n" / "ckpt-6.pt")
    assert content["step"] == 6


@pytest.mark.slow_except("adam_optimizer-slots2-1")
@pytest.mark.parametrize(
    ("kind", "slots", "version"),
    [
        ("momentum_optimizer", {"momentum": ("Momentum", 1)}, 1),
        ("rms_prop_optimizer", {"squares": ("RMSProp", 1), "momentum": ("RMSProp_1", 1)}, 1),
        ("adam_optimizer", {"mean": ("Adam", 1), "squares": ("Adam_1", 1)}, 1),
        ("rms_prop_optimizer", {"squares": ("rms", 1), "momentum": ("momentum", 1)}, 2),
        ("adam_optimizer", {"mean": ("m", 1), "squares": ("v", 1)}, 2),
    ],
)
def test_slots_of_every_rule(kind: str, slots: dict[str, tuple[str, int]], version: int, tmp_path: Path) -> None:
    """Slots written as each TensorFlow names them come back, averages with them."""
    text = SMALL_MODEL if version == 2 else SMALL_MODEL.replace("_fpn_keras", "_fpn")
    state = fresh(text + training(kind, average=True))
    network = state.detector.network
    variables = (tf2_variables if version == 2 else tf1_variables)(network).named
    rng = np.random.default_rng(0)
    learnt = {name for name, parameter in network.named_parameters() if parameter.requires_grad}
    arrays, wanted = {}, {}
    for name, variable in variables.items():
        array = variable.to_theirs(network.state_dict()[name].numpy())
        arrays[variable.key] = array
        average = "average" if version == 2 else "ExponentialMovingAverage"
        for slot in (*(theirs for theirs, _ in slots.values()), average) if name in learnt else ():
            key = (
                variable.key.replace(ATTRIBUTE, f"/.OPTIMIZER_SLOT/optimizer/{slot}{ATTRIBUTE}")
                if version == 2
                else f"{variable.key}/{slot}"
            )
            arrays[key] = wanted[name, slot] = rng.normal(size=array.shape).astype(np.float32)
    arrays[f"step{ATTRIBUTE}" if version == 2 else "global_step"] = np.array(30, np.int64)
    prefix = write_bundle(tmp_path / "model.ckpt-30", arrays, None)
    resume_tensorflow(state, prefix, 4)
    assert state.step == 30
    parameters = dict(network.named_parameters())
    for name in learnt:
        for ours, (theirs, sign) in slots.items():
            found = state.optimizer.state[parameters[name]][ours]
            np.testing.assert_array_equal(sign * found.numpy(), variables[name].to_ours(wanted[name, theirs]))
        assert state.average is not None
        average = "average" if version == 2 else "ExponentialMovingAverage"
        np.testing.assert_array_equal(
            state.average.shadow[name].numpy(), variables[name].to_ours(wanted[name, average])
        )


@pytest.mark.slow
def test_a_checkpoint_without_an_optimizer(tmp_path: Path) -> None:
    state = fresh(SMALL_MODEL + training("momentum_optimizer"))
    arrays = {
        v.key: v.to_theirs(state.detector.network.state_dict()[n].numpy())
        for n, v in tf2_variables(state.detector.network).named.items()
    }
    said = resume_tensorflow(state, write_bundle(tmp_path / "ckpt-0", arrays, {}), 4)
    assert "momentum: restored for 0 of" in said
    assert state.optimizer.param_groups[0]["count"] == 0
    assert state.step == 0


def test_only_a_run_in_the_folder_itself_is_resumed(tmp_path: Path) -> None:
    """What lies in `checkpoint/` or `saved_model/` was exported or fetched, to start from."""
    arrays = {"a": np.ones(1, np.float32)}
    for name in ("checkpoint", "saved_model"):
        write_bundle(tmp_path / name / name / "ckpt-0", arrays, None)
        assert find_training(tmp_path / name) is None
    prefix = write_bundle(tmp_path / "run" / "model.ckpt-3", arrays, None)
    assert find_training(tmp_path / "run") == prefix
    (tmp_path / "run" / "checkpoint").unlink()
    assert find_training(tmp_path / "run") is None
