"""Image classifiers by timm's names: a backbone computes of a file what timm's own network does."""

from __future__ import annotations

from pathlib import Path

import pytest
import timm
import torch
from safetensors.torch import save_file
from torch import Tensor, nn

import boxwright as bw
from boxwright.nn.backbones.timm_backbone import TimmBackbone
from boxwright.pipeline.detector import build_detector
from boxwright.pipeline.load import load_config
from boxwright.weights.timm_names import _converted, timm_classifier


class Wrapped(nn.Module):
    """A network that is a backbone alone."""

    def __init__(self, name: str, strides: tuple[int, ...]) -> None:
        super().__init__()
        self.backbone = TimmBackbone(name, strides=strides)


def detector_of(kind: str) -> bw.Detector:
    changes = [f"model.ssd.feature_extractor.type={kind}", "model.ssd.feature_extractor.depth_multiplier=1"]
    return build_detector(load_config("preset:ssd_mobilenet_v2_fpn_small", changes).model)


def classifier(name: str, seed: int = 0) -> nn.Module:
    """Return timm's network with random weights, and statistics that differ from channel to channel."""
    torch.manual_seed(seed)
    network = timm.create_model(name).eval()
    for module in network.modules():
        if isinstance(module, nn.BatchNorm2d):
            module.running_mean.normal_(0, 0.1)  # type: ignore[union-attr]
            module.running_var.uniform_(0.7, 1.5)  # type: ignore[union-attr]
    return network


def relative(found: Tensor, wanted: Tensor) -> float:
    return float((found - wanted).abs().max() / wanted.abs().max())


# One of each way in which timm wraps a network, and of several families.
FAMILIES = {
    "resnet10t": (8, 32),
    "resnet18": (8, 32),
    "efficientnet_lite0": (8, 32),
    "mobilenetv3_small_050": (8, 32),
    "mobilenetv4_conv_small_035": (8, 32),
    "regnetx_002": (8, 32),
    "hgnetv2_b0": (8, 32),
    "convnext_atto": (8, 32),
    "densenet121": (8, 32),
    "xception41": (8, 32),
    "swin_tiny_patch4_window7_224": (8, 32),
    "vit_tiny_patch16_224": (16,),
}


@torch.no_grad()
@pytest.mark.parametrize(
    "name", [pytest.param(n, marks=pytest.mark.slow if i > 3 else ()) for i, n in enumerate(FAMILIES)]
)
def test_families(name: str) -> None:
    theirs, network = classifier(name), Wrapped(name, FAMILIES[name])
    found = timm_classifier(network, theirs.state_dict(), Path("file"))
    assert found is not None
    state = network.state_dict()
    assert found.values.keys() == {ours for ours in state if not ours.endswith("num_batches_tracked")}
    network.load_state_dict(found.values, strict=False)
    side = 224 if name.startswith(("swin", "vit")) else 64
    x = torch.randn(1, 3, side, side)
    # timm's own wrapping of the same weights.
    given = {"state_dict": dict(theirs.state_dict())}
    wanted = timm.create_model(name, features_only=True, pretrained=True, pretrained_cfg_overlay=given).eval()(x)
    if name.startswith("swin"):  # whose channels are last
        wanted = [maps.permute(0, 3, 1, 2) for maps in wanted]
    for level, maps in zip(network.backbone.levels, network.eval().backbone(x), strict=True):
        assert relative(maps, wanted[level]) < 1e-5
    assert found.unused, "the head"
    assert not any(
        reason != "after the backbone's last map, as the classifier's head is" for reason in found.unused.values()
    )


@torch.no_grad()
@pytest.mark.parametrize("ending", ["pth", "safetensors"])
@pytest.mark.parametrize("scope", ["classification", "transfer"])
def test_files(tmp_path: Path, ending: str, scope: str) -> None:
    theirs, path = classifier("efficientnet_lite0"), tmp_path / f"efficientnet_lite0.{ending}"
    if ending == "pth":
        torch.save(theirs.state_dict(), path)
    else:
        save_file(theirs.state_dict(), path)
    detector = detector_of("timm/efficientnet_lite0")
    report = bw.load_weights(detector, path, scope)  # type: ignore[arg-type]
    assert {name.split(".")[0] for name in report.restored} == {"backbone"}
    assert {name.split(".")[0] for name in report.kept} == {"neck", "head"}
    assert {name.split(".")[0] for name in report.unused} == {"conv_head", "bn2", "classifier"}
    assert report.restored["backbone.body.conv_stem.weight"] == "conv_stem.weight"
    x = torch.randn(1, 3, 64, 64)
    found = detector.network.backbone(x)  # type: ignore[operator]
    wanted = theirs.forward_intermediates(x, intermediates_only=True)  # type: ignore[operator]
    assert relative(found[-1], wanted[-1]) < 1e-5


def test_a_whole_detector_is_not_in_a_classifier(tmp_path: Path) -> None:
    torch.save(classifier("resnet10t").state_dict(), tmp_path / "resnet10t.pth")
    for scope in ("full", "detection"):
        with pytest.raises(bw.CheckpointError, match="neck.laterals.0.weight: not in the source"):
            bw.load_weights(detector_of("timm/resnet10t"), tmp_path / "resnet10t.pth", scope)  # type: ignore[arg-type]


@pytest.mark.parametrize(("of", "kind"), [("resnet34", "resnet18"), ("tf_efficientnet_b1", "tf_efficientnet_b0")])
def test_other_sizes(of: str, kind: str) -> None:
    """Their first blocks fit by name, and for some by shape."""
    with pytest.raises(bw.CheckpointError, match=f"no place in timm/{kind}: it is of another size"):
        timm_classifier(Wrapped(kind, (8,)), timm.create_model(of).state_dict(), Path("file"))


def test_smaller_sizes(tmp_path: Path) -> None:
    torch.save(timm.create_model("resnet18").state_dict(), tmp_path / "resnet18.pth")
    with pytest.raises(bw.CheckpointError, match=r"cannot be restored; the first is .*layer1.2.conv1.weight: not in"):
        bw.load_weights(detector_of("timm/resnet34"), tmp_path / "resnet18.pth", "classification")


def test_other_families(tmp_path: Path) -> None:
    torch.save(timm.create_model("resnet10t").state_dict(), tmp_path / "resnet10t.pth")
    with pytest.raises(bw.CheckpointError, match="not of a layout known for a SSD on a timm/efficientnet_lite0"):
        bw.load_weights(detector_of("timm/efficientnet_lite0"), tmp_path / "resnet10t.pth", "classification")


def test_timms_reading_says_nothing_of_the_classifier(caplog: pytest.LogCaptureFixture) -> None:
    """EfficientNet's features have no head: timm warns of its keys, twice a file."""
    values = _converted("efficientnet_lite0", classifier("efficientnet_lite0").state_dict())
    assert "conv_stem.weight" in values
    assert not caplog.records


@pytest.mark.slow
@torch.no_grad()
def test_names_that_timm_changes() -> None:
    """ConvNeXt's authors' names, which timm reads too."""
    theirs = classifier("convnext_atto").state_dict()
    authors = {}
    for name, value in theirs.items():
        renamed = name.replace("stem.", "downsample_layers.0.").replace("head.norm", "norm").replace("head.fc", "head")
        if name.startswith("stages."):
            _, stage, kind, *rest = name.split(".")
            renamed = ".".join(["downsample_layers" if kind == "downsample" else "stages", stage, *rest])
            renamed = renamed.replace("conv_dw", "dwconv").replace("mlp.fc", "pwconv")
        authors[renamed] = value
    network = Wrapped("convnext_atto", (8, 32))
    found = timm_classifier(network, authors, Path("file"))
    assert found is not None
    assert found.values.keys() == network.state_dict().keys()
    assert torch.equal(
        found.values["backbone.body.stages_3.blocks.0.conv_dw.weight"], theirs["stages.3.blocks.0.conv_dw.weight"]
    )


@torch.no_grad()
def test_efficientnet_of_ours(tmp_path: Path) -> None:
    theirs = classifier("tf_efficientnet_b0")
    torch.save(theirs.state_dict(), tmp_path / "tf_efficientnet_b0.pth")
    detector = build_detector(load_config("preset:efficientdet_d0").model)
    report = bw.load_weights(detector, tmp_path / "tf_efficientnet_b0.pth", "transfer")
    assert {name.split(".")[0] for name in report.restored} == {"backbone"}
    x = torch.randn(1, 3, 64, 64)
    wanted = theirs.forward_intermediates(x, intermediates_only=True)  # type: ignore[operator]
    for map, other in zip(detector.network.backbone(x), wanted[-3:], strict=True):  # type: ignore[operator]
        assert relative(map, other) < 1e-5


@torch.no_grad()
@pytest.mark.parametrize(
    ("name", "preset", "changes"),
    [
        (
            "mobilenetv2_100",
            "ssd_mobilenet_v2_fpn_small",
            ["depth_multiplier=1", "use_explicit_padding=true", "override_base_feature_extractor_hyperparams=false"],
        ),
        ("hgnetv2_b0", "d_fine_n_coco", []),
    ],
)
def test_networks_of_ours_whose_pixels_are_others(name: str, preset: str, changes: list[str], tmp_path: Path) -> None:
    """A picture gives the same maps, but at the border, where what pads is black here and gray there."""
    theirs = classifier(name)
    torch.save(theirs.state_dict(), tmp_path / f"{name}.pth")
    text = [f"model.ssd.feature_extractor.{change}" for change in changes]
    detector = build_detector(load_config(f"preset:{preset}", text).model).eval()
    bw.load_weights(detector, tmp_path / f"{name}.pth", "classification")
    side = 512
    picture = torch.rand(1, side, side, 3) * 255
    mean, deviation = torch.tensor([0.485, 0.456, 0.406]), torch.tensor([0.229, 0.224, 0.225])
    wanted = theirs.forward_intermediates(
        ((picture / 255 - mean) / deviation).permute(0, 3, 1, 2), intermediates_only=True
    )
    scaled = detector.preprocessor.normalize(picture.permute(0, 3, 1, 2), torch.tensor([[side, side]]))
    map = detector.network.backbone(scaled)[0]
    other = next(one for one in wanted if one.shape == map.shape)
    middle = map.shape[-1] // 2
    inner = slice(middle - 1, middle + 1)
    assert relative(map[..., inner, inner], other[..., inner, inner]) < 1e-4
