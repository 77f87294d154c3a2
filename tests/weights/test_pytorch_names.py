"""Weights by the names of public PyTorch networks: what they compute there, they compute here."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
import torchvision
from torch import Tensor
from torch.nn import functional as F

import boxwright as bw
from boxwright.config.load import parse_message
from boxwright.pipeline import messages as m

VGG = ((0, 2), (5, 7), (10, 12, 14), (17, 19, 21), (24, 26, 28))
WIDTHS = (64, 128, 256, 512, 512)


def detector_of(
    kind: str, classes: int = 2, more: str = "anchor_refinement { } transfer_connection { }"
) -> bw.Detector:
    text = f"""refinedet {{ num_classes: {classes} {more}
      image_resizer {{ fixed_shape_resizer {{ height: 64 width: 128 }} }} feature_extractor {{ type: "{kind}" }} }}"""
    return bw.build_detector(parse_message(text, m.DetectionModel))


def random_state(shapes: dict[str, tuple[int, ...]]) -> dict[str, Tensor]:
    random = torch.Generator().manual_seed(0)
    state = {}
    for name, shape in shapes.items():
        scale = (2 / torch.tensor(shape[1:]).prod()) ** 0.5 if len(shape) > 1 else 0.1
        state[name] = torch.randn(shape, generator=random) * scale
    return state


def vgg_shapes(prefix: str) -> dict[str, tuple[int, ...]]:
    shapes: dict[str, tuple[int, ...]] = {}
    channels = 3
    for layers, width in zip(VGG, WIDTHS, strict=True):
        for layer in layers:
            shapes |= both(f"{prefix}{layer}", width, channels, 3)
            channels = width
    return shapes | both(f"{prefix}31", 1024, 512, 3) | both(f"{prefix}33", 1024, 1024, 1)


def both(name: str, out: int, inside: int, kernel: int) -> dict[str, tuple[int, ...]]:
    return {f"{name}.weight": (out, inside, kernel, kernel), f"{name}.bias": (out,)}


def port_state(classes: int) -> dict[str, Tensor]:
    """Tensors by the names, and of the shapes, of the public RefineDet port."""
    shapes = vgg_shapes("vgg.") | {"conv4_3_L2Norm.weight": (512,), "conv5_3_L2Norm.weight": (512,)}
    shapes |= both("extras.0", 256, 1024, 1) | both("extras.1", 512, 256, 3)
    for level, width in enumerate((512, 512, 1024, 512)):
        shapes |= both(f"arm_loc.{level}", 12, width, 3) | both(f"arm_conf.{level}", 6, width, 3)
        shapes |= both(f"odm_loc.{level}", 12, 256, 3) | both(f"odm_conf.{level}", 3 * (classes + 1), 256, 3)
        shapes |= both(f"tcb0.{3 * level}", 256, width, 3) | both(f"tcb0.{3 * level + 2}", 256, 256, 3)
        shapes |= both(f"tcb2.{3 * level + 1}", 256, 256, 3)
        if level < 3:
            shapes |= both(f"tcb1.{level}", 256, 256, 2)
    state = random_state(shapes)
    return {n: v + 10 if n.endswith("L2Norm.weight") else v for n, v in state.items()}


def port_forward(state: dict[str, Tensor], x: Tensor) -> dict[str, Tensor]:
    """What the port computes, layer by layer, without any module of ours."""

    def conv(name: str, x: Tensor, **how: int) -> Tensor:
        kernel = state[f"{name}.weight"]
        how.setdefault("padding", kernel.shape[-1] // 2)
        return F.conv2d(x, kernel, state[f"{name}.bias"], **how)

    def normalized(name: str, x: Tensor) -> Tensor:
        length = x.pow(2).sum(1, keepdim=True).sqrt() + 1e-10
        return x / length * state[f"{name}_L2Norm.weight"][None, :, None, None]

    def rows(maps: list[Tensor], size: int) -> Tensor:
        return torch.cat([map.permute(0, 2, 3, 1).reshape(len(map), -1) for map in maps], 1).view(len(x), -1, size)

    sources = []
    for number, layers in enumerate(VGG):
        for layer in layers:
            x = conv(f"vgg.{layer}", x).relu()
        if number >= 3:
            sources.append(normalized(f"conv{number + 1}_3", x))
        x = F.max_pool2d(x, 2, 2)
    x = conv("vgg.31", x, padding=3, dilation=3).relu()
    x = conv("vgg.33", x).relu()
    sources.append(x)
    x = conv("extras.0", x).relu()
    sources.append(conv("extras.1", x, stride=2, padding=1).relu())
    transferred: list[Tensor] = []
    for level in (3, 2, 1, 0):
        s = conv(f"tcb0.{3 * level + 2}", conv(f"tcb0.{3 * level}", sources[level]).relu())
        if level < 3:
            s = s + F.conv_transpose2d(
                transferred[0], state[f"tcb1.{level}.weight"], state[f"tcb1.{level}.bias"], stride=2
            )
        transferred.insert(0, conv(f"tcb2.{3 * level + 1}", s.relu()).relu())
    return {
        "arm_loc": rows([conv(f"arm_loc.{i}", s) for i, s in enumerate(sources)], 4),
        "arm_conf": rows([conv(f"arm_conf.{i}", s) for i, s in enumerate(sources)], 2),
        "odm_loc": rows([conv(f"odm_loc.{i}", t) for i, t in enumerate(transferred)], 4),
        "odm_conf": rows([conv(f"odm_conf.{i}", t) for i, t in enumerate(transferred)], 3),
    }


@pytest.mark.slow
@torch.no_grad()
@pytest.mark.parametrize("prefix", ["", "module."])
def test_refinedet_port(tmp_path: Path, prefix: str) -> None:
    state = port_state(2)
    torch.save({f"{prefix}{name}": value for name, value in state.items()}, tmp_path / "RefineDet.pth")
    detector = detector_of("refinedet_vgg16")
    report = bw.load_weights(detector, tmp_path / "RefineDet.pth")
    assert not report.kept
    assert not report.unused
    assert len(report.restored) == len(state) == len(detector.network.state_dict())
    x = torch.randn(2, 3, 64, 128, generator=torch.Generator().manual_seed(1))
    wanted, found = port_forward(state, x), detector.predict(x)
    swap = [1, 0, 3, 2]
    ours = {
        "arm_loc": found.refinement.box_codes[..., swap],
        "arm_conf": found.refinement.class_logits,
        "odm_loc": found.detection.box_codes[..., swap],
        "odm_conf": found.detection.class_logits,
    }
    for name, value in ours.items():
        assert value.shape == wanted[name].shape
        assert torch.allclose(value, wanted[name], rtol=1e-3, atol=1e-4 * float(wanted[name].abs().max())), name


@pytest.mark.slow
def test_port_of_other_classes_keeps_all_but_the_class_predictor(tmp_path: Path) -> None:
    torch.save(port_state(2), tmp_path / "voc.pth")
    detector = detector_of("refinedet_vgg16", classes=5)
    with pytest.raises(bw.CheckpointError, match="scope 'full'"):
        bw.load_weights(detector, tmp_path / "voc.pth")
    report = bw.load_weights(detector, tmp_path / "voc.pth", scope="transfer")
    assert {name.split(".")[1] for name in report.kept} == {"classes"}
    assert "refinement.classes.0.0.weight" in report.restored


@pytest.mark.slow
def test_reduced_vgg(tmp_path: Path) -> None:
    state = random_state(vgg_shapes(""))
    torch.save(state, tmp_path / "vgg16_reducedfc.pth")
    detector = detector_of("refinedet_vgg16")
    report = bw.load_weights(detector, tmp_path / "vgg16_reducedfc.pth", scope="classification")
    assert len(report.restored) == len(state) == 30
    assert torch.equal(detector.network.state_dict()["backbone.stages.4.4.weight"], state["28.weight"])
    assert torch.equal(detector.network.state_dict()["backbone.converted.2.bias"], state["33.bias"])
    assert {name.split(".")[0] for name in report.kept} == {"backbone", "neck", "refinement", "transfer", "head"}
    assert [name for name in report.kept if name.startswith("backbone")] == [
        "backbone.norms.0.scale",
        "backbone.norms.1.scale",
    ]


@pytest.mark.slow
@torch.no_grad()
def test_torchvision_vgg(tmp_path: Path) -> None:
    """The same features of the same picture; the classifier's layers thinned as SSD's authors do."""
    theirs = torchvision.models.vgg16(weights=None).eval()
    torch.save(theirs.state_dict(), tmp_path / "vgg16.pth")
    detector = detector_of("refinedet_vgg16")
    report = bw.load_weights(detector, tmp_path / "vgg16.pth", scope="classification")
    assert set(report.unused) == {"classifier.6.weight", "classifier.6.bias"}
    levels = torch.rand(1, 3, 64, 64) * 255
    mean, deviation = torch.tensor([0.485, 0.456, 0.406]), torch.tensor([0.229, 0.224, 0.225])
    wanted = theirs.features[:30]((levels / 255 - mean[:, None, None]) / deviation[:, None, None])
    features = levels - 255 * mean[:, None, None]
    backbone = detector.network.backbone
    for number, stage in enumerate(backbone.stages):  # type: ignore[union-attr, arg-type]
        features = stage(features if number == 0 else F.max_pool2d(features, 2, 2))
    assert torch.allclose(features, wanted, rtol=1e-3, atol=1e-4 * float(wanted.max()))
    fc6, fc7 = theirs.classifier[0].weight, theirs.classifier[3].weight
    state = detector.network.state_dict()
    assert float(state["backbone.converted.0.weight"][5, 7, 1, 2]) == float(fc6[20, 7 * 49 + 3 * 7 + 6])
    assert float(state["backbone.converted.2.weight"][5, 7, 0, 0]) == float(fc7[20, 28])
    assert float(state["backbone.converted.2.bias"][5]) == float(theirs.classifier[3].bias[20])


@pytest.mark.slow
@torch.no_grad()
def test_resnet_of_caffe_by_torchvisions_names(tmp_path: Path) -> None:
    """Blocks stride in their first convolution, as converted Caffe models do; otherwise torchvision's network."""
    theirs = torchvision.models.resnet101(weights=None).eval()
    for module in theirs.modules():
        if isinstance(module, torchvision.models.resnet.Bottleneck):
            module.conv1.stride, module.conv2.stride = module.conv2.stride, module.conv1.stride
    # The variance that pixels with a deviation of 58 levels give: what Caffe's networks saw.
    theirs.bn1.running_var.copy_(theirs.conv1.weight.square().sum((1, 2, 3)) * 58**2)
    torch.save(theirs.state_dict(), tmp_path / "resnet101.pth")
    detector = detector_of("refinedet_resnet101", more="anchor_refinement { }")
    report = bw.load_weights(detector, tmp_path / "resnet101.pth", scope="classification")
    assert set(report.unused) == {"fc.weight", "fc.bias"} | {n for n in theirs.state_dict() if "num_batches" in n}
    assert not [name for name in report.kept if name.startswith("backbone")]
    x = torch.randn(1, 3, 64, 64)
    # Caffe's pooling looks beyond the border on the far side alone.
    pooled = F.max_pool2d(F.pad(theirs.relu(theirs.bn1(theirs.conv1(x))), (0, 1, 0, 1)), 3, 2)
    third = theirs.layer2(theirs.layer1(pooled))
    wanted = [third, theirs.layer3(third), theirs.layer4(theirs.layer3(third))]
    found = detector.network.backbone(x)  # type: ignore[operator]
    for one, other in zip(found, wanted, strict=True):
        assert torch.allclose(one, other, rtol=1e-3, atol=1e-4 * float(other.max()))


@torch.no_grad()
def test_resnet_of_torchvision_into_timm(tmp_path: Path) -> None:
    theirs = torchvision.models.resnet18(weights=None).eval()
    torch.save(theirs.state_dict(), tmp_path / "resnet18.pth")
    detector = detector_of("timm/resnet18")
    bw.load_weights(detector, tmp_path / "resnet18.pth", scope="classification")
    x = torch.randn(1, 3, 64, 64)
    found = detector.network.backbone(x)[0]  # type: ignore[operator]
    wanted = theirs.layer2(theirs.layer1(theirs.maxpool(theirs.relu(theirs.bn1(theirs.conv1(x))))))
    assert torch.allclose(found, wanted, rtol=1e-3, atol=1e-4)


@torch.no_grad()
def test_weights_that_take_blue_first(tmp_path: Path) -> None:
    """They see a picture whose channels are turned as those that take red first see it."""
    state = random_state(vgg_shapes(""))
    torch.save(state, tmp_path / "red.pth")
    torch.save(state | {"0.weight": state["0.weight"][:, [2, 1, 0]]}, tmp_path / "blue.pth")
    x, seen = torch.randn(1, 3, 64, 64), []
    for name, channels in (("red", "RGB"), ("blue", "BGR")):
        detector = detector_of("refinedet_vgg16")
        bw.load_weights(detector, tmp_path / f"{name}.pth", "classification", channels=channels)  # type: ignore[arg-type]
        seen.append(detector.network.backbone(x)[0])  # type: ignore[operator]
    assert torch.equal(*seen)
    torch.save({"31.weight": state["31.weight"]}, tmp_path / "part.pth")
    with pytest.raises(bw.CheckpointError, match="'BGR'.*in the source it is missing"):
        bw.load_weights(detector, tmp_path / "part.pth", "classification", channels="BGR")


@pytest.mark.parametrize(
    ("deviation", "kind", "message"),
    [(1.0, "refinedet_resnet101", "pixels near 1.*use timm/resnet101"), (58.0, "timm/resnet18", "pixels in 0..255")],
)
def test_resnets_that_saw_other_pixels(tmp_path: Path, deviation: float, kind: str, message: str) -> None:
    theirs = torchvision.models.resnet18(weights=None)
    with torch.no_grad():
        theirs.bn1.running_var.copy_(theirs.conv1.weight.square().sum((1, 2, 3)) * deviation**2)
    torch.save(theirs.state_dict(), tmp_path / "resnet.pth")
    with torch.device("meta"):
        detector = detector_of(kind, more="anchor_refinement { }")
    with pytest.raises(bw.CheckpointError, match=message):
        bw.load_weights(detector, tmp_path / "resnet.pth", scope="classification")


class Evil:
    """Runs a command when unpickled."""

    def __reduce__(self) -> tuple[object, tuple[str]]:
        import os

        return os.system, ("touch should-not-be",)


def test_files_that_are_no_weights(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    detector = detector_of("refinedet_mobilenet_v2")
    torch.save(Evil(), tmp_path / "evil.pth")
    torch.save([1, 2], tmp_path / "list.pth")
    torch.save({"conv1.weight": torch.zeros(3)}, tmp_path / "other.pth")
    whole = (tmp_path / "other.pth").read_bytes()
    (tmp_path / "short.pth").write_bytes(whole[: len(whole) // 2])
    (tmp_path / "empty.pth").write_bytes(b"")
    (tmp_path / "text.pth").write_text("hello world, this is no checkpoint")
    torch.save({1: torch.zeros(3)}, tmp_path / "numbers.pth")
    for name, message in {
        "empty": "not readable as tensors by names: .",
        "text": "not readable as tensors by names",
        "numbers": "expected tensors by names",
        "evil": "not readable as tensors by names",
        "list": "expected tensors by names",
        "other": r"its names \(conv1.weight, …\) are not of a layout known for a RefineDet on a MobileNetV2",
        "short": "not readable as tensors by names",
        "missing": "not readable as tensors by names",
    }.items():
        with pytest.raises(bw.CheckpointError, match=message):
            bw.load_weights(detector, tmp_path / f"{name}.pth", scope="classification")
    assert not (tmp_path / "should-not-be").exists()


def test_random_bytes_are_no_weights(tmp_path: Path) -> None:
    random, detector = np.random.default_rng(0), detector_of("refinedet_mobilenet_v2")
    for _ in range(200):
        (tmp_path / "bytes.pth").write_bytes(random.bytes(int(random.integers(1, 400))))
        with pytest.raises(bw.CheckpointError, match="not readable as tensors by names|expected tensors by names"):
            bw.load_weights(detector, tmp_path / "bytes.pth")


@pytest.mark.parametrize(
    ("name", "shape"),
    [("classifier.0.weight", (4096, 512)), ("classifier.3.bias", ()), ("arm_loc.0.weight", (13, 512))],
)
def test_tensors_of_shapes_that_cannot_be_brought_to_ours(tmp_path: Path, name: str, shape: tuple[int, ...]) -> None:
    state = {"features.0.weight": torch.zeros(64, 3, 3, 3)} if "classifier" in name else port_state(2)
    torch.save(state | {name: torch.zeros(shape)}, tmp_path / "odd.pth")
    detector = detector_of("refinedet_vgg16")
    with pytest.raises(bw.CheckpointError, match=rf"odd.pth: {name} has shape \[.*\]"):
        bw.load_weights(detector, tmp_path / "odd.pth", scope="classification")
