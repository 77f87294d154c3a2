"""Draw the network of a D-FINE configuration as SVG; shapes and layers are those of a forward pass.

python docs/draw_d_fine.py preset:d_fine_n_coco docs/d_fine.svg
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

import torch
from torch import nn

from boxwright.pipeline.detector import build_detector
from boxwright.pipeline.load import load_config

WIDTH, HEIGHT, ACROSS, DOWN, LEFT, TOP = 168, 46, 210, 76, 20, 50
COLORS = {"image": "#eeeeee", "map": "#dbe7f5", "encoder": "#d9ead3", "query": "#f9dcc4", "decoder": "#ead1dc"}
Place = tuple[int, float]


def main() -> None:
    """Draw."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("config")
    parser.add_argument("target", type=Path)
    arguments = parser.parse_args()
    detector = build_detector(load_config(arguments.config)).eval()
    size = detector.preprocessor.resizer.output_size
    if not size:
        raise SystemExit("expected inputs of one size")
    arguments.target.write_text(drawn(detector.network, size), encoding="utf-8")


def seen(network: Any, size: tuple[int, int]) -> dict[str, Any]:
    """Return what the parts of a network return for an input."""
    found: dict[str, Any] = {}

    def note(name: str) -> Any:
        return lambda _module, _inputs, result: found.__setitem__(name, result)

    parts: dict[str, nn.Module] = {"backbone": network.backbone, "encoder": network.encoder}
    hooks = [part.register_forward_hook(note(name)) for name, part in parts.items()]
    with torch.no_grad():
        found["all"] = network(torch.zeros(1, 3, *size), torch.tensor([size]))
    for hook in hooks:
        hook.remove()
    return found


def drawn(network: Any, size: tuple[int, int]) -> str:
    """Return the picture."""
    found = seen(network, size)
    maps, (fused, _), queries = list(found["backbone"]), found["encoder"], found["all"].queries
    rows, layers = len(maps), len(network.decoder.decoder.layers)
    middle = (rows - 1) / 2
    boxes: list[tuple[Place, str, list[str]]] = [((0, middle), "image", ["input", f"{size[0]}×{size[1]}, 0..1"])]
    arrows: list[tuple[Place, Place]] = []
    for level, (one, other) in enumerate(zip(maps, fused, strict=True)):
        more = "attends to itself, then" if level == rows - 1 else "with finer and coarser:"
        boxes.append(((1, level), "map", [f"backbone, stride {size[0] // one.shape[2]}", shape(one)]))
        boxes.append(((2, level), "encoder", [more, f"fused, {shape(other)}"]))
        arrows += [((0, middle), (1, level)), ((1, level), (2, level)), ((2, level), (3, middle))]
        arrows += [((2, level), (2, level + 1)), ((2, level + 1), (2, level))] if level < rows - 1 else []
    count = queries.layers[-1].logits.shape[1]
    boxes.append(((3, middle), "query", [f"the {count} likeliest cells", "queries with first boxes"]))
    taps = ", ".join(map(str, network.decoder.decoder.layers[0].cross_attn.taps))
    boxes.append(((4, middle), "decoder", [f"{layers} layers: self-attention,", f"then {taps} taps of maps"]))
    bins = len(found["all"].bins)
    boxes.append(((5, middle - 0.5), "decoder", ["classes", f"{count} × {queries.layers[-1].logits.shape[2]}, no NMS"]))
    boxes.append(((5, middle + 0.5), "decoder", ["boxes: 4 distributions", f"over {bins} bins, refined"]))
    arrows += [((3, middle), (4, middle)), ((4, middle), (5, middle - 0.5)), ((4, middle), (5, middle + 0.5))]
    height = TOP + (rows - 1) * DOWN + HEIGHT + 20
    head = f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {LEFT * 2 + 5 * ACROSS + WIDTH} {height}" '
    head += 'font-family="sans-serif" font-size="12" text-anchor="middle">'
    mark = '<defs><marker id="a" viewBox="0 0 8 8" refX="8" refY="4" markerWidth="7" markerHeight="7" orient="auto">'
    mark += '<path d="M0 0 8 4 0 8z" fill="#666"/></marker></defs>'
    lines = [arrow(one, other) for one, other in arrows]
    return "\n".join([head, mark, *lines, *(box(*one) for one in boxes), "</svg>"]) + "\n"


def shape(value: torch.Tensor) -> str:
    """Return a map's shape in words."""
    _, channels, height, width = value.shape
    return f"{channels} × {height}×{width}"


def corner(place: Place) -> tuple[float, float]:
    """Return the upper left corner of a box."""
    return LEFT + place[0] * ACROSS, TOP + place[1] * DOWN


def box(place: Place, kind: str, lines: list[str]) -> str:
    """Return a box with two lines of text."""
    x, y = corner(place)
    text = "".join(
        f'<text x="{x + WIDTH / 2:g}" y="{y + 19 + 17 * number:g}">{line}</text>' for number, line in enumerate(lines)
    )
    edge = f'<rect x="{x:g}" y="{y:g}" width="{WIDTH}" height="{HEIGHT}" rx="6" fill="{COLORS[kind]}" stroke="#888"/>'
    return edge + text


def arrow(one: Place, other: Place) -> str:
    """Return an arrow between two boxes, from side to side, or up and down within a column."""
    (x, y), (u, v) = corner(one), corner(other)
    if one[0] == other[0]:
        shift = WIDTH * (0.4 if v > y else 0.6)
        start, end = (y + HEIGHT, v) if v > y else (y, v + HEIGHT)
        ends = (x + shift, start, u + shift, end)
    else:
        ends = (x + WIDTH, y + HEIGHT / 2, u, v + HEIGHT / 2)
    return '<path d="M{:g} {:g}L{:g} {:g}" stroke="#666" fill="none" marker-end="url(#a)"/>'.format(*ends)


if __name__ == "__main__":
    main()
