"""Draw presets' networks from the networks themselves: `python -m website.architecture PRESET OUT.svg`.

One forward pass says which parts run, of what shape their results are, and, by walking autograd's graph from a part's
inputs back to other parts' results, what feeds what.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field, fields, is_dataclass
from html import escape
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from boxwright.cli.benchmarking.preset_costs import PICTURE
from boxwright.config.preset import PREFIX
from boxwright.pipeline.detector import build_detector
from boxwright.pipeline.load import load_config

# The presets whose networks the site's pages on models show.
SHOWN = {
    "ssd.md": ("ssd_mobilenet_v2_fpnlite_320", "efficientdet_d0"),
    "two_stage.md": ("faster_rcnn_resnet50_v1_640", "mask_rcnn_resnet50_fpn_coco"),
    "context_rcnn.md": ("context_rcnn_resnet101_serengeti",),
    "centernet.md": ("center_net_resnet50_v1_fpn_512_keypoints",),
    "refinedet.md": ("refinedet320_vgg16_voc",),
    "srn.md": ("srn_resnet50_wider_face",),
    "align_det.md": ("align_det_resnet101_coco",),
    "d_fine.md": ("d_fine_n_coco",),
    "rf_detr.md": ("rf_detr_nano_coco",),
}
_INPUT = "picture"
_MOST_SHAPES, _IN_A_LINE = 8, 4
_WIDTH, _LEFT, _LINE, _GAP, _PAD = 560, 20, 20, 34, 12
_LANE = 16  # between arrows beside the boxes
_COLORS = ("#dbe7f5", "#d9ead3", "#f9dcc4", "#ead1dc", "#fff2cc", "#d0e8e8")
_HEAD = (
    '<marker id="head" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="8" markerHeight="8" orient="auto">'
    '<path d="M0 0 8 4 0 8z" fill="#4a5560"/></marker>'
)
_STYLE = (
    "text{font:14px system-ui,sans-serif;fill:#1b2027}.t{font-weight:600}.s{fill:#4a5560;font-size:13px}"
    ".n{text-anchor:end}.b{stroke:#8a95a1}.a{fill:none;stroke:#4a5560;stroke-width:1.5;marker-end:url(#head)}"
    ".later{stroke-dasharray:5 4}"
)


@dataclass
class Part:
    """A part of a network that ran.

    Attributes:
        parameters: How many numbers it learns.
        shapes: Of its results, without the batch, in order and each once.
        sources: The parts that feed it, and `picture`.
        given: Whether it takes something else, too: boxes that were chosen, which pass no gradient.
    """

    name: str
    kind: str
    parameters: int
    shapes: list[tuple[int, ...]] = field(default_factory=list)
    sources: set[str] = field(default_factory=set)
    given: bool = False


@dataclass(frozen=True)
class Network:
    """A network as it is drawn: its parts in the order in which they ran, and its input's height and width."""

    input: tuple[int, int]
    parts: list[Part]


class _Watch:
    """Notes what a network's parts take and return while it runs."""

    def __init__(self, network: nn.Module, picture: Tensor) -> None:
        self.parts: list[Part] = []
        self._network, self._picture = network, picture
        self._makers: dict[Any, str] = {}
        self._inside = 0

    def hooks(self) -> Iterator[Any]:
        """Yield the handles of hooks on the parts, and on what is in them: some parts' own methods are called."""
        for name, child in self._network.named_children():
            # Such as anchors, and the order of colors: nothing of them is learned.
            if not (count := sum(value.numel() for value in child.parameters())):
                continue
            part = Part(name, type(child).__name__, count)
            for module in child.modules():
                yield module.register_forward_pre_hook(
                    lambda _, given, kwargs, part=part: self._enter(part, (given, kwargs)), with_kwargs=True
                )
                yield module.register_forward_hook(
                    lambda _, __, made, part=part: self._leave(part, made), always_call=True
                )

    def _enter(self, part: Part, given: Any) -> None:
        self._inside += 1
        if self._inside > 1:
            return
        if all(one is not part for one in self.parts):
            self.parts.append(part)
        for value in filter(torch.is_floating_point, _tensors(given)):
            found = set(self._fed_by(value))
            part.sources |= found - {part.name}
            part.given |= not found

    def _leave(self, part: Part, made: Any) -> None:
        self._inside -= 1
        if self._inside:
            return
        for value in _tensors(made):
            if value.grad_fn is not None:
                self._makers.setdefault(value.grad_fn, part.name)
            shape = tuple(value.shape[1:])
            if len(shape) > 1 and value.is_floating_point() and shape not in part.shapes:
                part.shapes.append(shape)

    def _fed_by(self, value: Tensor) -> Iterator[str]:
        if value is self._picture:
            yield _INPUT
        seen, left = set(), [value.grad_fn]
        while left:
            one = left.pop()
            if one is None or one in seen:
                continue
            seen.add(one)
            if one in self._makers:
                yield self._makers[one]
            elif getattr(one, "variable", None) is self._picture:
                yield _INPUT
            else:
                left += [before for before, _ in one.next_functions]


def _tensors(value: Any) -> Iterator[Tensor]:
    if isinstance(value, Tensor):
        yield value
    elif isinstance(value, dict):
        yield from (one for item in value.values() for one in _tensors(item))
    elif isinstance(value, list | tuple):
        yield from (one for item in value for one in _tensors(item))
    elif is_dataclass(value):
        yield from (one for item in fields(value) for one in _tensors(getattr(value, item.name)))


def network_of(preset: str) -> Network:
    """Return a preset's network as it is drawn, by a forward pass with random weights."""
    config = load_config(f"{PREFIX}{preset}")
    # Only the choice of proposals depends on values; `meta` computes nothing.
    two_stage = config.model is not None and config.model.faster_rcnn is not None
    with torch.random.fork_rng([]), torch.device("cpu" if two_stage else "meta"):
        torch.manual_seed(0)
        detector = build_detector(config).eval()
        inputs, sizes = detector.preprocess(torch.zeros(1, *PICTURE, 3))
        inputs.requires_grad_()
        watch = _Watch(detector.network, inputs)
        with ExitStack() as hooks:
            for handle in watch.hooks():
                hooks.callback(handle.remove)
            detector.network(inputs, sizes)
    return Network((inputs.shape[2], inputs.shape[3]), watch.parts)


def svg(preset: str, network: Network) -> str:
    """Return a network's picture."""
    rows: dict[str, tuple[str, str, list[str]]] = {_INPUT: (preset, f"{network.input[0]}×{network.input[1]}×3", [])} | {
        part.name: (f"{part.name}: {part.kind}", _millions(part.parameters), _lines(part.shapes))
        for part in network.parts
    }
    tops, y = {}, 10
    for name, (_, _, lines) in rows.items():
        tops[name] = (y, 2 * _PAD + _LINE * (1 + len(lines)))
        y += tops[name][1] + _GAP
    drawn: list[str] = []
    fed: set[str] = set()
    lanes = 0
    names = list(rows)
    for number, part in enumerate(network.parts, 1):
        for source in sorted(part.sources & set(rows), key=names.index):
            adjacent = names.index(source) == number - 1
            lanes += not adjacent
            drawn.append(_arrow(tops[source], tops[part.name], 0 if adjacent else lanes))
        # What chooses boxes passes no gradient: what ran before and fed nothing yet fed this.
        unfed = [one.name for one in network.parts[: number - 1] if part.given and one.name not in fed | part.sources]
        drawn += [_arrow(tops[name], tops[part.name], 0, "a later") for name in unfed]
        fed |= part.sources | set(unfed)
    boxes = [
        _box(tops[name], row, "#eef1f4" if name == _INPUT else _COLORS[number % len(_COLORS)])
        for number, (name, row) in enumerate(rows.items())
    ]
    width, height = _LEFT + _WIDTH + 20 + _LANE * lanes + 10, y - _GAP + 10
    size = f'viewBox="0 0 {width} {height}" width="{width}" height="{height}"'
    return "\n".join([
        f'<svg xmlns="http://www.w3.org/2000/svg" {size} role="img">',
        f"<title>{escape(preset)}</title><defs><style>{_STYLE}</style>{_HEAD}</defs>",
        f'<rect width="{width}" height="{height}" rx="10" fill="#fff"/>', *boxes, *drawn, "</svg>\n",
    ])  # fmt: skip


def _millions(count: int) -> str:
    return f"{count / 1e6:.2f} M parameters" if count >= 5000 else f"{count:,} parameters"


def _lines(shapes: list[tuple[int, ...]]) -> list[str]:
    """Return results' shapes in lines: height, width and depth of maps."""
    texts = ["×".join(map(str, _in_order(shape))) for shape in shapes[:_MOST_SHAPES]]
    if len(shapes) > _MOST_SHAPES:
        texts.append(f"and {len(shapes) - _MOST_SHAPES} more")
    return [" · ".join(texts[start : start + _IN_A_LINE]) for start in range(0, len(texts), _IN_A_LINE)]


def _in_order(shape: tuple[int, ...]) -> tuple[int, ...]:
    """Return a map's height, width and depth; boxes, of four numbers each, as they are."""
    is_map = len(shape) == 3 and (shape[2] != 4 or shape[1] == 4)
    return (*shape[1:], shape[0]) if is_map else shape


def _box(place: tuple[int, int], row: tuple[str, str, list[str]], color: str) -> str:
    (top, height), (title, right, lines) = place, row
    first = top + _PAD + 14
    texts = [
        f'<text class="s" x="{_LEFT + 12}" y="{first + _LINE * number}">{escape(line)}</text>'
        for number, line in enumerate(lines, 1)
    ]
    return (
        f'<rect class="b" x="{_LEFT}" y="{top}" width="{_WIDTH}" height="{height}" rx="8" fill="{color}"/>'
        f'<text class="t" x="{_LEFT + 12}" y="{first}">{escape(title)}</text>'
        f'<text class="s n" x="{_LEFT + _WIDTH - 12}" y="{first}">{escape(right)}</text>{"".join(texts)}'
    )


def _arrow(source: tuple[int, int], target: tuple[int, int], lane: int, kind: str = "a") -> str:
    """Return an arrow down, or around the boxes between in a lane of its own."""
    if not lane:
        x = _LEFT + _WIDTH // 2
        return f'<path class="{kind}" d="M{x} {source[0] + source[1]}V{target[0]}"/>'
    edge, x = _LEFT + _WIDTH, _LEFT + _WIDTH + 14 + _LANE * lane
    start, end = source[0] + source[1] * 2 // 3, target[0] + target[1] // 3
    return f'<path class="{kind}" d="M{edge} {start}H{x - 6}q6 0 6 6V{end - 6}q0 6 -6 6H{edge}"/>'


def section(folder: Path, page: str) -> str:
    """Return the section that a page ends with, and draw its pictures into a folder; empty for most pages."""
    presets = SHOWN.get(page, ())
    if not presets:
        return ""
    (folder / "architecture").mkdir(exist_ok=True)
    texts = ["\n## The network, drawn from itself\n"]
    for preset in presets:
        (folder / "architecture" / f"{preset}.svg").write_text(svg(preset, network_of(preset)), encoding="utf-8")
        texts.append(f"![The parts of {preset}](architecture/{preset}.svg)\n")
    texts.append(
        "A box is a part of the network, with its parameters and the shapes of its results (height, width, depth of\n"
        "maps) for a picture of 480×640; arrows lead to what it feeds, dashed where boxes are chosen. Drawn by a\n"
        f"forward pass when this page was built: `python -m website.architecture {presets[0]} OUT.svg`.\n"
    )
    return "\n".join(texts)


if __name__ == "__main__":
    Path(sys.argv[2]).write_text(svg(sys.argv[1], network_of(sys.argv[1])), encoding="utf-8")
