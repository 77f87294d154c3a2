"""Draw the network of a RefineDet configuration as SVG, from the network itself.

    python docs/draw_refinedet.py preset:refinedet320_vgg16_voc docs/refinedet.svg

One forward pass says which parts there are, of what shape their results are, and, by walking autograd's graph from
each part's input back to other parts' results, what feeds what. Columns are parts, rows are levels.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from boxwright.config.preset import PREFIX
from boxwright.pipeline.detector import build_detector
from boxwright.pipeline.load import load_config

WIDTH, HEIGHT, ACROSS, DOWN, TOP = 150, 46, 200, 96, 70
COLUMNS = {
    "map": ("backbone", "#dbe7f5"),
    "refinement": ("ARM: object or not, where", "#f9dcc4"),
    "lateral": ("TCB: to one depth", "#d9ead3"),
    "linear": ("TCB: linear", "#d9ead3"),
    "enlarge": ("TCB: coarser, doubled", "#b6d7a8"),
    "smooth": ("TCB: sum, smooth", "#d9ead3"),
    "head": ("ODM: class, where", "#ead1dc"),
}


@dataclass
class Part:
    """A part of the network that ran.

    Attributes:
        column: A key of `COLUMNS`.
        level: Its level, finest first.
        lines: What is written in its box.
        inputs: Where autograd's walk to what feeds it starts.
        results: Its results' functions in autograd's graph.
    """

    column: str
    level: int
    lines: list[str]
    inputs: list[Any]
    results: list[Any]


def levels_of(network: Any) -> tuple[nn.Module, nn.Module | None]:
    """Find what makes the first step's maps, and what transfers them.

    Args:
        network: A RefineDet, or what is left of one.

    Returns:
        The neck, and the transfer connection or None.
    """
    if isinstance(network.neck, nn.Sequential):
        return network.neck[0], network.neck[1]
    return network.neck, getattr(network, "transfer", None)


def drawn(network: nn.Module, transfer: nn.Module | None) -> Iterator[tuple[nn.Module, str, int, str]]:
    """List the modules that are drawn, but for the maps.

    Args:
        network: A RefineDet, or what is left of one.
        transfer: Its transfer connection, or None.

    Yields:
        A module, its column, its level and its title.
    """
    for name in ("refinement", "head"):
        head = getattr(network, name, None)
        for what in ("boxes", "classes"):
            for level, predictor in enumerate(getattr(head, what, ())):
                yield predictor, name, level, what
    for column in ("lateral", "linear", "enlarge", "smooth"):
        for level, block in enumerate(getattr(transfer, column, ())):
            side = next(module for module in block.modules() if hasattr(module, "kernel_size")).kernel_size[0]
            yield block, column, level, f"{column} {side}×{side}"


def parts_of(network: nn.Module, inputs: Tensor) -> list[Part]:
    """Run the network and note its parts.

    Args:
        network: A RefineDet, or what is left of one.
        inputs: float [1, 3, H, W].

    Returns:
        The parts, in the order in which they ran.
    """
    found: list[Part] = []

    def shape(value: Tensor) -> str:
        return f"{value.shape[1]} × {value.shape[2]} × {value.shape[3]}"

    def note(column: str, level: int, title: str) -> Any:
        def hook(_: nn.Module, arguments: tuple[Tensor, ...], result: Tensor) -> None:
            lines = [title, shape(result)]
            found.append(Part(column, level, lines, [arguments[0].grad_fn], [result.grad_fn]))

        return hook

    def maps(_: nn.Module, __: object, result: list[Tensor]) -> None:
        for level, value in enumerate(result):
            stride = inputs.shape[-1] // value.shape[-1]
            found.append(Part("map", level, [f"stride {stride}", shape(value)], [], [value.grad_fn]))

    first, transfer = levels_of(network)
    first.register_forward_hook(maps)
    for module, column, level, title in drawn(network, transfer):
        module.register_forward_hook(note(column, level, title))
    network(inputs, torch.tensor([inputs.shape[-2:]]))
    return found


def sources(part: Part, parts: list[Part]) -> Iterator[Part]:
    """Find what feeds a part: the nearest other parts in autograd's graph.

    Args:
        part: The part.
        parts: All parts.

    Yields:
        Each of those once.
    """
    owners = {id(function): other for other in parts for function in other.results}
    pending, seen = list(part.inputs), set()
    while pending:
        function = pending.pop()
        if function is None or id(function) in seen:
            continue
        seen.add(id(function))
        if id(function) in owners:
            yield owners[id(function)]
        else:
            pending += [following for following, _ in function.next_functions]


def merged(parts: list[Part]) -> list[Part]:
    """Draw the two predictors of a level as one box.

    Args:
        parts: As `parts_of` returned.

    Returns:
        One part a column and level.
    """
    boxes: dict[tuple[str, int], Part] = {}
    for part in parts:
        key = (part.column, part.level)
        if key not in boxes:
            boxes[key] = part
        else:
            boxes[key].lines = [f"{one.lines[0]} {one.lines[1].split(' ×')[0]}" for one in (boxes[key], part)]
            boxes[key].inputs += part.inputs
            boxes[key].results += part.results
    return list(boxes.values())


def svg(parts: list[Part], title: str) -> str:
    """Write the picture.

    Args:
        parts: One a column and level.
        title: Above it.

    Returns:
        An SVG file's text.
    """
    columns = [column for column in COLUMNS if any(part.column == column for part in parts)]
    place = {name: 20 + ACROSS * number for number, name in enumerate(columns)}
    levels = 1 + max(part.level for part in parts)
    width, height = 20 + ACROSS * len(columns), TOP + DOWN * levels
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}"',
        'font-family="sans-serif" font-size="12">',
        '<defs><marker id="tip" viewBox="0 0 8 8" refX="8" refY="4" markerWidth="7" markerHeight="7" orient="auto">'
        '<path d="M0 0L8 4L0 8z" fill="#555"/></marker></defs>',
        f'<rect width="{width}" height="{height}" fill="white"/>',
        f'<text x="20" y="24" font-size="15" font-weight="bold">{title}</text>',
    ]
    lines += [f'<text x="{place[name]}" y="{TOP - 16}" fill="#333">{COLUMNS[name][0]}</text>' for name in columns]
    for part in parts:
        for source in sources(part, parts):
            x, y = place[source.column] + WIDTH, TOP + DOWN * source.level + HEIGHT / 2
            to_x, to_y = place[part.column], TOP + DOWN * part.level + HEIGHT / 2
            if to_x < x:  # back to the left, one level up
                x, y, to_x, to_y = x - WIDTH / 2, y - HEIGHT / 2, to_x + WIDTH / 2, to_y + HEIGHT / 2
            # Long ways pass beneath the boxes between.
            far = to_x - x > ACROSS and source.level == part.level
            bend = (
                f"M{x} {y}C{x + 40} {y + 62},{to_x - 40} {to_y + 62},{to_x} {to_y}"
                if far
                else f"M{x} {y}L{to_x} {to_y}"
            )
            lines.append(f'<path d="M{x} {y}{bend}" stroke="#555" fill="none" marker-end="url(#tip)"/>')
    for part in parts:
        x, y = place[part.column], TOP + DOWN * part.level
        box = f'<rect x="{x}" y="{y}" width="{WIDTH}" height="{HEIGHT}" rx="5" stroke="#888" '
        lines.append(f'{box}fill="{COLUMNS[part.column][1]}"/>')
        lines += [f'<text x="{x + 8}" y="{y + 18 + 17 * row}">{text}</text>' for row, text in enumerate(part.lines)]
    return "\n".join([*lines, "</svg>", ""])


def main() -> None:
    """Draw."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("config")
    parser.add_argument("out", type=Path)
    arguments = parser.parse_args()
    config = load_config(arguments.config)
    network = build_detector(config).network
    resizer: Any = config.model.refinedet.image_resizer.fixed_shape_resizer  # type: ignore[union-attr]
    parts = merged(parts_of(network, torch.zeros(1, 3, resizer.height, resizer.width)))
    arguments.out.write_text(svg(parts, Path(arguments.config.removeprefix(PREFIX)).stem))


if __name__ == "__main__":
    main()
