"""Context R-CNN's attention against its definition written in NumPy, and how it stands in a detector."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from torch import Tensor

from boxwright.base.errors import CheckpointError, ConfigError, DataError
from boxwright.base.safetensors_file import pack_safetensors
from boxwright.config.load import parse_message
from boxwright.families.two_stage.context_attention import ContextAttention
from boxwright.families.two_stage.second_stage import BoxClassifier, CornerCrop
from boxwright.nn.detector import Detector
from boxwright.pipeline import messages as m
from boxwright.pipeline.detector import build_detector
from boxwright.types import Proposals, Targets
from boxwright.types.context_features import ContextFeatures
from boxwright.weights.load_weights import load_weights
from boxwright.weights.tensorflow.variables import tf1_variables
from tests.conftest import assert_close
from tests.two_stage_models import ONE_MAP

Array = NDArray[Any]
LENGTH, WIDTH, TEMPERATURE = 7, 5, 0.3


def context_rcnn(options: str = "", *, version: int = 1, place: str = "POST_BOX_CLASSIFIER") -> Detector:
    """Return a small Context R-CNN whose normalization is not an identity."""
    # Of few layers, and with names in TF1's checkpoints.
    text = ONE_MAP.replace("resnet50_keras", "mobilenet_v1") if version == 1 else ONE_MAP
    config = f"""context_config {{ max_num_context_features: 9 context_feature_length: {LENGTH}
        attention_bottleneck_dimension: {WIDTH} attention_temperature: {TEMPERATURE} attention_position: {place}
        {options} }}"""
    text = text.replace("proposals: 16", "proposals: 4").replace("batch_size: 8", "batch_size: 4")
    text = text.replace("initial_crop_size: 14", "initial_crop_size: 4")
    text = text.replace("faster_rcnn {", f"faster_rcnn {{ {config}", 1)
    torch.manual_seed(5)
    detector = build_detector(parse_message(text, m.DetectionModel)).eval()
    with torch.no_grad():
        for module in attention_of(detector).modules():
            if isinstance(module, torch.nn.BatchNorm2d):
                for tensor in (module.weight, module.bias, module.running_mean):
                    assert tensor is not None
                    tensor.normal_(0.5, 0.3)
    return detector


def attention_of(detector: Detector) -> ContextAttention:
    found: Any = detector.network.get_submodule("second.attention")
    return found


def project(state: dict[str, Array], name: str, rows: Array) -> Array:
    """A dense layer, normalization with its statistics, ReLU6."""
    dense = rows @ state[f"{name}.0.weight"][:, :, 0, 0].T + state.get(f"{name}.0.bias", 0)
    deviation = np.sqrt(state[f"{name}.1.running_var"] + 0.001)
    normal = (dense - state[f"{name}.1.running_mean"]) / deviation * state[f"{name}.1.weight"] + state[f"{name}.1.bias"]
    return np.clip(normal, 0, 6)


def unit(rows: Array) -> Array:
    return rows / np.sqrt(np.maximum((rows**2).sum(-1, keepdims=True), 1e-12))


def block(state: dict[str, Array], name: str, regions: Array, context: Array) -> Array:
    """One image's attention to context that has no padding."""
    query, key, value = (
        unit(project(state, f"{name}.{part}", rows))
        for part, rows in (("query", regions), ("key", context), ("value", context))
    )
    weights = np.exp(query @ key.T / TEMPERATURE)
    return project(state, f"{name}.output", weights / weights.sum(-1, keepdims=True) @ value)


def layered(state: dict[str, Array], regions: Array, context: Array, *, layers: int, heads: int, order: str) -> Array:
    """TF1's order of layers: what is added to the regions."""
    own = block(state, "attend.itself", regions, regions) if order else 0
    start = (own + regions) / 2 if order == "sequence" else regions
    current = start
    for layer in range(layers):
        outputs = [block(state, f"attend.blocks.{layer * heads + head}", current, context) for head in range(heads)]
        current = current + sum(outputs) / heads
    total = current + start
    return own + total if order == "parallel" else total


ORDERS = {
    "": "",
    "parallel": "use_self_attention: true",
    "sequence": "use_self_attention: true self_attention_in_sequence: true",
}


@pytest.mark.slow_except("2-1-")
@pytest.mark.parametrize("order", list(ORDERS))
@pytest.mark.parametrize(("layers", "heads"), [(1, 1), (2, 1), (1, 3), (2, 2)])
def test_layers_and_heads_by_the_definition(order: str, layers: int, heads: int) -> None:
    options = f"{ORDERS[order]} num_attention_layers: {layers} num_attention_heads: {heads}"
    attention = attention_of(context_rcnn(options))
    state = {name: value.double().numpy() for name, value in attention.state_dict().items()}
    channels = state["attend.blocks.0.output.0.weight"].shape[0]
    rng = np.random.default_rng(3)
    features, context = rng.normal(size=(2, 4, channels, 3, 3)), rng.normal(size=(2, 6, LENGTH))
    counts = np.array([6, 2])
    side = ContextFeatures(torch.tensor(context, dtype=torch.float32), torch.tensor(counts))
    with torch.no_grad():
        rows = torch.tensor(features, dtype=torch.float32).flatten(0, 1)
        found = attention(rows, torch.ones(2, 4) > 0, side).view(2, 4, channels, 3, 3)
    for image, count in enumerate(counts):
        regions, near = features[image].mean((2, 3)), context[image, :count]
        wanted = layered(state, regions, near, layers=layers, heads=heads, order=order)
        assert_close(found[image], features[image] + wanted[..., None, None], 1e-4, 1e-3)


def test_self_attention_alone() -> None:
    attention = attention_of(context_rcnn("use_self_attention: true use_long_term_attention: false"))
    state = {name: value.double().numpy() for name, value in attention.state_dict().items()}
    regions = np.random.default_rng(4).normal(size=(3, state["attend.itself.output.0.weight"].shape[0]))
    with torch.no_grad():
        rows = torch.tensor(regions, dtype=torch.float32)[..., None, None]
        found = attention(rows, torch.ones(1, 3) > 0, None)[..., 0, 0]
    assert_close(found, regions + block(state, "attend.itself", regions, regions), 1e-4, 1e-3)


@pytest.mark.slow_cases("2-POST_BOX_CLASSIFIER")
@pytest.mark.parametrize(("version", "place"), [(1, "POST_RPN"), (2, "POST_BOX_CLASSIFIER")])
def test_padding_changes_nothing_and_context_does(version: int, place: str) -> None:
    detector = context_rcnn(version=version, place=place)
    network: Any = detector.network
    inputs, sizes = torch.randn(2, 3, 64, 64), torch.tensor([[64, 64], [64, 64]])
    with torch.no_grad():
        first = network.first_stage(inputs)
    features, counts = torch.randn(2, 4, LENGTH), torch.tensor([4, 1])
    features[1, 1:] = 0
    garbage = torch.cat([features, torch.randn(2, 3, LENGTH)], dim=1)

    def logits(context: ContextFeatures | None) -> torch.Tensor:
        with torch.no_grad():
            found: torch.Tensor = network.later_stages(first, sizes, None, context).regions.class_logits
        return found

    plain = logits(ContextFeatures(features, counts))
    assert_close(logits(ContextFeatures(garbage, counts)), plain, 1e-5, 1e-5)
    assert (logits(ContextFeatures(garbage, counts + 1)) - plain).abs().max() > 1e-4
    # Without context each image is one whose context is empty.
    nothing = logits(ContextFeatures(garbage, torch.zeros(2, dtype=torch.int64)))
    assert_close(logits(None), nothing, 1e-6, 1e-6)
    # An image's result does not depend on the other's context.
    other = garbage.clone()
    other[1] += 1
    assert_close(logits(ContextFeatures(other, counts))[0], plain[0], 1e-5, 1e-5)


def test_training_pads_to_the_configured_number_whatever_it_is_given() -> None:
    detector = context_rcnn(version=2).train()
    inputs, sizes = torch.randn(1, 3, 64, 64), torch.tensor([[64, 64]])
    boxes = torch.tensor([[[8.0, 8, 40, 40]]])
    targets = Targets(boxes, torch.zeros(1, 1, dtype=torch.int64), torch.ones(1, 1), torch.ones(1, 1) > 0)
    features = torch.randn(1, 12, LENGTH)

    def logits(count: int, width: int) -> torch.Tensor:
        torch.manual_seed(0)
        rows = torch.zeros(1, width, LENGTH)
        rows[:, : min(count, width)] = features[:, : min(count, width)]
        context = ContextFeatures(rows, torch.tensor([count]))
        with torch.no_grad():
            found: torch.Tensor = detector.predict(inputs, sizes, targets, context).regions.class_logits
        return found

    assert torch.equal(logits(3, 3), logits(3, 7))
    # More than the configured 9 are cut, as TF's input pipeline does.
    assert torch.equal(logits(12, 12), logits(9, 9))
    assert not torch.equal(logits(9, 9), logits(8, 9))


@pytest.mark.slow_cases("2")
@pytest.mark.parametrize("version", [1, 2])
def test_gradients_reach_every_projection(version: int) -> None:
    detector = context_rcnn("use_self_attention: true" if version == 1 else "", version=version)
    context = ContextFeatures(torch.randn(1, 4, LENGTH), torch.tensor([4]))
    detector.predict(torch.randn(1, 3, 64, 64), context=context).regions.class_logits.sum().backward()
    kernels = [(n, p) for n, p in attention_of(detector).named_parameters() if n.endswith("0.weight")]
    assert len(kernels) == (8 if version == 1 else 4)
    for name, kernel in kernels:
        assert kernel.grad is not None, name
        assert torch.isfinite(kernel.grad).all(), name


def test_names_of_tf1_and_back() -> None:
    """TF-Slim numbers the dense layers of a scope; that of the output is outside the block's scope."""
    detector = context_rcnn("use_self_attention: true num_attention_heads: 2 num_attention_layers: 2")
    named = {ours: variable.key for ours, variable in tf1_variables(detector.network).named.items()}
    wanted = {
        "itself.query": "SelfAttentionBlock/fully_connected",
        "itself.value": "SelfAttentionBlock/fully_connected_2",
        "itself.output": "fully_connected",
        "blocks.1.key": "AttentionBlock1_AttentionLayer0/fully_connected_1",
        "blocks.1.output": "fully_connected_2",
        "blocks.2.query": "AttentionBlock0_AttentionLayer1/fully_connected",
        "blocks.3.output": "fully_connected_4",
    }
    for ours, theirs in wanted.items():
        assert named[f"second.attention.attend.{ours}.0.weight"] == f"{theirs}/weights"
        assert named[f"second.attention.attend.{ours}.1.running_mean"] == f"{theirs}/BatchNorm/moving_mean"
    weights = {
        variable.key: variable.to_theirs(detector.network.state_dict()[ours].numpy())
        for ours, variable in tf1_variables(detector.network).named.items()
    }
    other = context_rcnn("use_self_attention: true num_attention_heads: 2 num_attention_layers: 2")
    with torch.no_grad():
        for parameter in attention_of(other).parameters():
            parameter.zero_()
    load_weights(other, weights)
    for name, tensor in attention_of(other).state_dict().items():
        assert torch.equal(tensor, attention_of(detector).state_dict()[name]), name


ERRORS = [
    (2, "use_self_attention: true", "TensorFlow 2 has one layer with one head"),
    (2, "num_attention_heads: 2", "TensorFlow 2 has one layer with one head"),
    (1, "use_long_term_attention: false", "use_long_term_attention: without it and without use_self_attention"),
    (0, "ATTENTION_DEFAULT", "use POST_BOX_CLASSIFIER or POST_RPN"),
    (1, "} output_final_box_features: true level_proposals { ", "excludes output_final_box_features"),
    (1, "attention_temperature: 0", "attention_temperature"),
    (1, "} number_of_stages: 1 level_proposals { ", "set number_of_stages: 2"),
]


@pytest.mark.parametrize(("version", "options", "error"), ERRORS)
def test_what_the_original_refuses_is_refused_with_its_path(version: int, options: str, error: str) -> None:
    with pytest.raises(ConfigError, match=error):
        context_rcnn(options, version=version) if version else context_rcnn(place=options)


def test_features_of_another_length_are_refused_in_a_line() -> None:
    detector = context_rcnn()
    context = ContextFeatures(torch.zeros(1, 2, LENGTH + 1), torch.tensor([2]))
    with pytest.raises(DataError, match=f"context features of {LENGTH + 1} numbers.*{LENGTH}"):
        detector.predict(torch.zeros(1, 3, 64, 64), context=context)


def pictures(count: int) -> list[Array]:
    rng = np.random.default_rng(3)
    return [rng.integers(0, 256, (50, 70 + 10 * number, 3)).astype(np.uint8) for number in range(count)]


def found_in(detector: Detector, context: ContextFeatures | None) -> list[Tensor]:
    return [found.scores for found in detector.detect(pictures(3), context=context)]


def test_detection_takes_each_images_context() -> None:
    """Whatever else is in the call; and a memory stands in for images without any."""
    detector = context_rcnn(version=2)
    with torch.no_grad():  # scores of 1 would all be alike
        for parameter in detector.network.get_submodule("second.head.classes").parameters():
            parameter.mul_(0.1)
    context = ContextFeatures(torch.randn(3, 4, LENGTH), torch.tensor([4, 2, 0]))
    together = found_in(detector, context)
    for number, image in enumerate(pictures(3)):
        (alone,) = detector.detect([image], context=context.rows(number, number + 1))
        assert_close(alone.scores, together[number], 1e-4, 1e-5)
    plain = found_in(detector, None)
    assert_close(plain[2], together[2], 1e-4, 1e-5)
    assert not torch.allclose(plain[0], together[0], atol=1e-4)
    attention_of(detector).remember(context.features[0])
    assert_close(found_in(detector, None)[0], together[0], 1e-4, 1e-5)
    assert_close(found_in(detector, context)[1], together[1], 1e-4, 1e-5)
    with pytest.raises(DataError, match=r"context features of shape \[4, 8\], but .* is 7"):
        attention_of(detector).remember(torch.zeros(4, LENGTH + 1))
    assert not any("memory" in name for name in detector.network.state_dict())


@pytest.mark.slow
def test_a_detector_of_single_images_starts_it(tmp_path: Path) -> None:
    """All but attention is restored, which starts fresh; a checkpoint that lacks something else is refused."""
    detector, other = context_rcnn(version=2), context_rcnn(version=2)
    source = {name: value + 1 for name, value in detector.network.state_dict().items()}
    without = {name: value for name, value in source.items() if not name.startswith("second.attention.")}
    assert len(without) < len(source)
    path = tmp_path / "single.safetensors"
    path.write_bytes(pack_safetensors(without))
    restored = load_weights(other, path, "transfer")
    assert set(restored.kept) == {name for name in set(source) - set(without) if "num_batches" not in name}
    for name, value in other.network.state_dict().items():
        if name in restored.restored:
            assert torch.equal(value, source[name]), name
    del without["rpn.head.convolve.0.weight"]
    with pytest.raises(CheckpointError, match=r"cannot be restored; the first is rpn.head.convolve"):
        path.write_bytes(pack_safetensors(without))
        load_weights(other, path, "transfer")


def test_attention_before_the_second_stage_reads_all_cells_of_a_crop() -> None:
    """Keras's ResNets read every second cell of it: what attends is the mean of all, as TF pools before it attends."""
    second = context_rcnn(version=2, place="POST_RPN").network.second
    assert isinstance(second, BoxClassifier)
    assert isinstance(second.crop, CornerCrop)
    assert second.attention is not None
    seen: list[torch.Tensor] = []
    second.attention.attend.register_forward_hook(lambda _, inputs, outputs: seen.append(inputs[0]))
    boxes = torch.tensor([[[3.0, 5.0, 40.0, 60.0], [10.0, 10.0, 30.0, 20.0]]])
    proposals = Proposals(boxes, torch.zeros(1, 2), torch.ones(1, 2) > 0)
    torch.manual_seed(0)
    channels_of_crops = 1024  # of ResNet's fourth stage
    maps = [torch.randn(1, channels_of_crops, 4, 4)]
    context = ContextFeatures(torch.randn(1, 3, LENGTH), torch.tensor([3]))
    with torch.no_grad():
        predictions = second(maps, proposals, (64, 64), context)
        every_cell = replace(second.crop, pool=replace(second.crop.pool, every=1))(maps, boxes, (64, 64))
    assert torch.equal(seen[0], every_cell.mean((2, 3))[None])
    assert predictions.features.shape[2:] == (1, 1), "the second stage still reads every second cell of 2 × 2"
