"""effdet's EfficientDet: what its tensors compute there, they compute here, and its boxes are ours."""

from __future__ import annotations

import math
from itertools import product
from pathlib import Path

import pytest
import timm
import torch
from torch import Tensor
from torch.nn import functional as F

import boxwright as bw
from boxwright.pipeline.detector import build_detector
from boxwright.pipeline.load import load_config

LEVELS, CELLS, DEPTH, CLASSES = range(5), 3, 64, 90
WIDTHS = (40, 112, 320)
State = dict[str, Tensor]


def nodes() -> list[tuple[int, tuple[int, ...]]]:
    """Return a pass's nodes: the level, and the maps that it adds, the first five being the pass's inputs."""
    down = [(3, (3, 4)), (2, (2, 5)), (1, (1, 6)), (0, (0, 7))]
    return [*down, (1, (1, 7, 8)), (2, (2, 6, 9)), (3, (3, 5, 10)), (4, (4, 11))]


class Drawn:
    """Random tensors by name."""

    def __init__(self, *, biased: bool) -> None:
        self.random, self.biased = torch.Generator().manual_seed(0), biased
        self.state: State = {}

    def conv(self, name: str, out: int, inside: int, side: int, *, bias: bool) -> None:
        kernel = torch.randn(out, inside, side, side, generator=self.random)
        self.state[f"{name}.weight"] = kernel / (inside * side * side) ** 0.5
        if bias:
            self.state[f"{name}.bias"] = torch.randn(out, generator=self.random) * 0.1

    def norm(self, name: str) -> None:
        for key in ("weight", "running_var"):
            self.state[f"{name}.{key}"] = torch.rand(DEPTH, generator=self.random) * 0.6 + 0.7
        for key in ("bias", "running_mean"):
            self.state[f"{name}.{key}"] = torch.randn(DEPTH, generator=self.random) * 0.1

    def separable(self, name: str, out: int = DEPTH, *, bias: bool) -> None:
        self.conv(f"{name}.conv_dw", DEPTH, 1, 3, bias=False)
        self.conv(f"{name}.conv_pw", out, DEPTH, 1, bias=bias)

    def pyramid(self) -> None:
        for name, width in (("fpn.resample.3", 320), *_projections()):
            self.conv(f"{name}.conv.conv", DEPTH, width, 1, bias=self.biased)
            self.norm(f"{name}.conv.bn")
        for cell, (number, (_, inputs)) in product(range(CELLS), enumerate(nodes())):
            name = f"fpn.cell.{cell}.fnode.{number}"
            self.state[f"{name}.combine.edge_weights"] = torch.rand(len(inputs), generator=self.random) * 2 - 0.3
            self.separable(f"{name}.after_combine.conv", bias=self.biased)
            self.norm(f"{name}.after_combine.conv.bn")

    def head(self, part: str, outputs: int) -> None:
        for layer in range(3):
            self.separable(f"{part}.conv_rep.{layer}", bias=self.biased)
            for level in LEVELS:
                self.norm(f"{part}.bn_rep.{layer}.{level}.bn")
        self.separable(f"{part}.predict", outputs, bias=True)


def random_state(*, biased: bool, kind: str) -> State:
    """Return tensors by effdet's names, as its own EfficientDet-D0 has them."""
    drawn = Drawn(biased=biased)
    body = timm.create_model(kind, features_only=True, out_indices=(2, 3, 4)).state_dict()
    drawn.state |= {f"backbone.{name}": value for name, value in body.items()}
    drawn.pyramid()
    drawn.head("class_net", 9 * CLASSES)
    drawn.head("box_net", 9 * 4)
    return drawn.state


def _projections() -> list[tuple[str, int]]:
    """Return the names of the projections of the backbone's maps, each with the map's width."""
    first = [(number, inputs[0]) for number, (_, inputs) in enumerate(nodes()) if inputs[0] < 3]
    return [(f"fpn.cell.0.fnode.{number}.combine.resample.{source}", WIDTHS[source]) for number, source in first]


class Port:
    """What effdet computes, layer by layer, without any module of ours."""

    def __init__(self, state: State, kind: str, *, same: bool) -> None:
        self.state, self.same = state, same
        self.body = timm.create_model(kind, features_only=True, out_indices=(2, 3, 4)).eval()
        self.body.load_state_dict(
            {n.removeprefix("backbone."): v for n, v in state.items() if n.startswith("backbone.")}
        )

    def conv(self, name: str, x: Tensor) -> Tensor:
        kernel = self.state[f"{name}.weight"]
        groups = len(kernel) // kernel.shape[1] if kernel.shape[1] == 1 else 1
        return F.conv2d(x, kernel, self.state.get(f"{name}.bias"), padding=kernel.shape[-1] // 2, groups=groups)

    def norm(self, name: str, x: Tensor) -> Tensor:
        one = {key: self.state[f"{name}.{key}"] for key in ("running_mean", "running_var", "weight", "bias")}
        return F.batch_norm(x, **one, eps=1e-3)  # type: ignore[arg-type]

    def separable(self, name: str, x: Tensor) -> Tensor:
        return self.conv(f"{name}.conv_pw", self.conv(f"{name}.conv_dw", x))

    def pool(self, x: Tensor) -> Tensor:
        if not self.same:
            return F.max_pool2d(x, 3, 2, 1)
        return F.max_pool2d(F.pad(x, (0, 1, 0, 1), value=-torch.inf), 3, 2)

    def projected(self, name: str, x: Tensor) -> Tensor:
        if f"{name}.conv.conv.weight" not in self.state:
            return x
        return self.norm(f"{name}.conv.bn", self.conv(f"{name}.conv.conv", x))

    def pyramid(self, maps: list[Tensor]) -> list[Tensor]:
        maps = [*maps, self.pool(self.projected("fpn.resample.3", maps[-1]))]
        maps.append(self.pool(maps[-1]))
        for cell in range(CELLS):
            for number, (level, inputs) in enumerate(nodes()):
                name, side = f"fpn.cell.{cell}.fnode.{number}", 16 >> level
                weights = self.state[f"{name}.combine.edge_weights"].relu()
                total: Tensor | float = 0.0
                for source, weight in zip(inputs, weights, strict=True):
                    x = self.projected(f"{name}.combine.resample.{source}", maps[source])
                    if x.shape[-1] > side:
                        x = self.pool(x)
                    elif x.shape[-1] < side:
                        x = F.interpolate(x, scale_factor=2.0)
                    total = total + x * weight / (weights.sum() + 1e-4)
                x = self.separable(f"{name}.after_combine.conv", F.silu(total))  # type: ignore[arg-type]
                maps.append(self.norm(f"{name}.after_combine.conv.bn", x))
            maps = maps[-5:]
        return maps

    def head(self, part: str, maps: list[Tensor], numbers: int) -> Tensor:
        rows = []
        for level, features in enumerate(maps):
            x = features
            for layer in range(3):
                x = self.separable(f"{part}.conv_rep.{layer}", x)
                x = F.silu(self.norm(f"{part}.bn_rep.{layer}.{level}.bn", x))
            rows.append(self.separable(f"{part}.predict", x).permute(0, 2, 3, 1).reshape(len(x), -1, 9, numbers))
        return torch.cat(rows, 1)

    def __call__(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Return class logits [B, A, 90], and boxes xyxy [B, A, 4] in pixels, locations' anchors in effdet's order."""
        maps = self.pyramid(self.body(x))
        return self.head("class_net", maps, CLASSES), _boxes(self.head("box_net", maps, 4), x.shape[-1])


def _boxes(codes: Tensor, side: int) -> Tensor:
    """Decode ty, tx, th, tw in effdet's anchors: three scales, each with sides of 1 and 1, 1.4 and 0.7, 0.7 and 1.4."""
    anchors = []
    for stride in (8, 16, 32, 64, 128):
        for y in range(stride // 2, side, stride):
            for x in range(stride // 2, side, stride):
                for scale in (2 ** (i / 3) for i in range(3)):
                    for wide, tall in ((1.0, 1.0), (1.4, 0.7), (0.7, 1.4)):
                        anchors.append((x, y, 4 * stride * scale * wide, 4 * stride * scale * tall))
    x, y, w, h = (one.view(-1, 9) for one in torch.tensor(anchors).unbind(-1))
    ty, tx, th, tw = codes.unbind(-1)
    center_x, center_y, half_w, half_h = tx * w + x, ty * h + y, tw.exp() * w / 2, th.exp() * h / 2
    return torch.stack([center_x - half_w, center_y - half_h, center_x + half_w, center_y + half_h], -1)


def detector_of(*changes: str, preset: str = "efficientdet_d0") -> bw.Detector:
    return build_detector(load_config(f"preset:{preset}", list(changes)).model).eval()


EXTRACTOR = "model.ssd.feature_extractor"
OWN = (f"{EXTRACTOR}.type=timm/efficientnet_b0", f"{EXTRACTOR}.use_explicit_padding=true")


@torch.no_grad()
@pytest.mark.parametrize(
    ("kind", "changes"),
    [
        ("tf_efficientnet_b0", ()),
        ("tf_efficientnet_b0", (f"{EXTRACTOR}.type=timm/tf_efficientnet_b0",)),
        ("efficientnet_b0", OWN),
    ],
)
def test_detector(tmp_path: Path, kind: str, changes: tuple[str, ...]) -> None:
    same = kind.startswith("tf_")
    state = random_state(biased=same, kind=kind)
    torch.save(state, tmp_path / "effdet.pth")
    detector = detector_of(*changes)
    report = bw.load_weights(detector, tmp_path / "effdet.pth")
    assert not report.kept
    assert all(name.endswith("num_batches_tracked") for name in report.unused)
    x = torch.randn(1, 3, 128, 128, generator=torch.Generator().manual_seed(1))
    logits, boxes = Port(state, kind, same=same)(x)
    order = [0, 3, 6, 1, 4, 7, 2, 5, 8]
    found = detector.predict(x)
    decoded = detector.postprocessor.decode(found).boxes  # type: ignore[attr-defined]
    assert torch.allclose(found.class_logits, logits[:, :, order].flatten(1, 2), atol=1e-4)
    assert torch.allclose(decoded, boxes[:, :, order].flatten(1, 2), rtol=1e-4, atol=1e-2)


def test_anchors_of_1_4_and_0_7_are_in_the_predictor() -> None:
    """An offset of a whole side, and a side as large as effdet's anchor, by hand."""
    state = random_state(biased=True, kind="tf_efficientnet_b0")
    state["box_net.predict.conv_pw.weight"].zero_()
    state["box_net.predict.conv_pw.bias"] = torch.tensor([1.0, 0.5, 0.0, 0.0]).repeat(9)
    detector = detector_of()
    from boxwright.weights.pytorch_names import from_pytorch

    found = from_pytorch(detector.network, state, Path("file"), detector.postprocessor.box_coder)  # type: ignore[attr-defined]
    codes = found.values["head.boxes.1.bias"].view(9, 4)
    growth = math.sqrt(2) / 1.4
    assert torch.allclose(codes[0], torch.tensor([10.0, 5.0, 0.0, 0.0]))
    wide = torch.tensor([10 / growth, 5 / growth, -5 * math.log(growth), -5 * math.log(growth)])
    assert torch.allclose(codes[3:], wide.expand(6, 4))


@pytest.mark.parametrize(
    ("preset", "changes", "biased", "message"),
    [
        ("efficientdet_d1", (), True, "from the last block of a stage.*timm/tf_efficientnet_b1"),
        ("efficientdet_d0", (), False, "pads as PyTorch does; take tf_efficientdet_"),
        ("efficientdet_d0", OWN, True, "pads as TF does; remove use_explicit_padding"),
        ("ssd_mobilenet_v2_fpn_small", (), True, "fits an SSD with bifpn.*preset:efficientdet_d0"),
        (
            "efficientdet_d0",
            ("model.ssd.feature_extractor.bifpn.num_iterations=2",),
            True,
            "has no place in the network",
        ),
    ],
)
def test_refusals(tmp_path: Path, preset: str, changes: tuple[str, ...], biased: bool, message: str) -> None:
    torch.save(random_state(biased=biased, kind="tf_efficientnet_b0"), tmp_path / "effdet.pth")
    with pytest.raises(bw.CheckpointError, match=message):
        bw.load_weights(detector_of(*changes, preset=preset), tmp_path / "effdet.pth")


def test_classes_of_ones_own_are_kept_by_name(tmp_path: Path) -> None:
    state = random_state(biased=True, kind="tf_efficientnet_b0")
    torch.save(state, tmp_path / "effdet.pth")
    detector = detector_of("model.ssd.num_classes=2")
    detector.categories = bw.Categories.from_list(
        [{"label": 0, "id": 1, "name": "box"}, {"label": 1, "id": 2, "name": "toothbrush"}]
    )
    report = bw.load_weights(detector, tmp_path / "effdet.pth", "transfer")
    assert "toothbrush kept by name; box start" in report.classes
    # COCO's 90th id, of the second scale in the first ratio.
    assert torch.equal(detector.network.head.classes[1].bias[3], state["class_net.predict.conv_pw.bias"][3 * 90 + 89])  # type: ignore[union-attr, index]
