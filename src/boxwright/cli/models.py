"""`boxwright models`: the presets, their costs, and weights for them."""

from __future__ import annotations

from dataclasses import asdict
from itertools import takewhile
from typing import TYPE_CHECKING, Annotated, Any

import typer

from boxwright.base.text import counted
from boxwright.cli.console import errors, print_json

if TYPE_CHECKING:
    from boxwright.cli.benchmarking.preset_costs import PresetCost
    from boxwright.weights.published import PublishedWeights

_ROUNDS = 5
# What is listed first: every task and size has one, and detectors of recent years come before older ones.
_FIRST = (
    "rf_detr_nano_coco",
    "rf_detr_medium_coco",
    "rf_detr_large_coco",
    "d_fine_n_coco",
    "d_fine_s_coco",
    "d_fine_l_coco",
    "ssd_hgnetv2_fpn_small",
    "ssd_mobilenet_v2_fpnlite_320",
    "efficientdet_d0",
    "torchvision_maskrcnn_resnet50_fpn_coco",
)


def models_command(
    name: Annotated[str, typer.Argument(help="A preset, for its details; default: a table of ten.")] = "",
    *,
    all_presets: Annotated[
        bool, typer.Option("--all", help="List all presets, not only the ten to begin with.")
    ] = False,
    measure: Annotated[
        bool, typer.Option("--measure", help="Also time the inference of one image on this machine's CPU.")
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """List the presets: configurations that come with Boxwright, for `preset: "NAME"` or `--config preset:NAME`.

    Parameters and multiplications are counted, not measured. Weights are published by others, and fetched when they are used by name.
    """
    from boxwright.base.errors import ConfigError
    from boxwright.cli.benchmarking.preset_costs import read_costs
    from boxwright.config.preset import preset_names, preset_path

    if name:
        if all_presets:
            raise ConfigError(f"--all lists every preset, and {name!r} is one: choose either")
        preset_path(name)
    costs = read_costs()
    names = preset_names() if all_presets else _FIRST
    chosen = {preset: costs[preset] for preset in ([name] if name else names)}
    measured = {preset: _milliseconds(preset) for preset in chosen} if measure else {}
    if as_json:
        rows = [_row(preset, cost, measured.get(preset)) for preset, cost in chosen.items()]
        print_json(rows[0] if name else rows)
    elif name:
        _describe(name, chosen[name], measured.get(name))
    else:
        _list(chosen, measured)


def _milliseconds(name: str) -> float:
    """Return the median time of a preset's detector with random weights, from a 480×640 image to detections."""
    from boxwright.cli.benchmarking.contenders import open_contenders, time_contenders
    from boxwright.cli.benchmarking.settings import BenchmarkSettings
    from boxwright.data.shapes import ShapesDataset

    errors.print(f"measure {name}")
    contenders = open_contenders([f"preset:{name}"], BenchmarkSettings(rounds=_ROUNDS, device="cpu"))
    timings, _ = time_contenders(contenders, [ShapesDataset(1, size=(480, 640))[0].image], [1], _ROUNDS)
    return timings[0].median_ms


def _row(name: str, cost: PresetCost, milliseconds: float | None) -> dict[str, Any]:
    from boxwright.weights.published import published_for

    row = {"name": name, **asdict(cost), "weights": [asdict(weights) for weights in published_for(name)]}
    return row if milliseconds is None else row | {"milliseconds_measured_here": round(milliseconds, 1)}


def _list(chosen: dict[str, PresetCost], measured: dict[str, float]) -> None:
    """Print a table of at most 80 columns, with uncut names, for copying."""
    from boxwright.config.preset import preset_names
    from boxwright.weights.published import published_for

    widest = max(len(name) for name in chosen)
    last = "ms here" if measured else "weights"
    print(f"{'preset':{widest}} {'input':>9} {'params':>6} {'GMAC':>5} {'AP':>4} {last}")
    for name, cost in chosen.items():
        params, macs = f"{cost.parameters / 1e6:.1f}M", cost.macs / 1e9
        gmac = f"{macs:.0f}" if macs >= 1000 else f"{macs:.1f}"
        published = published_for(name)
        ap = next((f"{weights.coco_box_ap:.1f}" for weights in published if weights.coco_box_ap is not None), "-")
        end = f"{measured[name]:7.0f}" if measured else ", ".join(_publishers(published)[:1]) or "-"
        print(f"{name:{widest}} {_input_size(cost):>9} {params:>6} {gmac:>5} {ap:>4} {end}")
    print(
        "\ninput: width×height of the network's input for a 640×480 image\n"
        "GMAC: 10⁹ multiply-accumulate operations per inference, counted; without a\n"
        "mask head's, which depend on the number of detections\n"
        "AP: of boxes on COCO in percent, as the publisher of the weights states it"
    )
    if measured:
        print("ms here: median for one image on this machine's CPU, measured now, random weights")
    else:
        print("weights: their publisher; `boxwright models NAME` names them, and how to begin")
    if len(chosen) < len(preset_names()):
        print(f"{len(chosen)} of {len(preset_names())} presets; all: boxwright models --all")


def _input_size(cost: PresetCost) -> str:
    return f"{cost.width}×{cost.height}"


def _publishers(published: tuple[PublishedWeights, ...]) -> list[str]:
    return list(dict.fromkeys(weights.publisher.split(" (")[0] for weights in published))


def _describe(name: str, cost: PresetCost, milliseconds: float | None) -> None:
    from boxwright.config.preset import preset_path, preset_text
    from boxwright.pipeline.load import load_config
    from boxwright.pipeline.message import learns_masks
    from boxwright.weights.published import published_for

    comment = takewhile(lambda line: line.startswith("#"), preset_text(name).split("\n"))
    # A recipe's example command, and what follows it, is replaced by the one printed below for every preset.
    about = takewhile(lambda line: not line.startswith("  "), (line.removeprefix("#") for line in comment))
    print(f"{name}\n\n" + "\n".join(line.strip() for line in about).strip())
    config = load_config(f"preset:{name}")
    train = config.train_config
    print(f"\ninput       {_input_size(cost)}, width×height, for a 640×480 image")
    print(f"parameters  {cost.parameters / 1e6:.2f} million")
    print(f"arithmetic  {cost.macs / 1e9:.2f} GMAC per inference")
    if milliseconds is not None:
        print(f"time        {milliseconds:.0f} ms per image, measured now on this machine's CPU, random weights")
    if train is not None:
        print(f"training    {counted(train.num_steps, 'step')} of {counted(train.batch_size, 'image')}")
        if train.fine_tune_checkpoint:
            print(f"starts from {train.fine_tune_checkpoint}, which must exist; or set fine_tune_checkpoint")
    print(f"file        {preset_path(name)}")
    for weights in published_for(name):
        _describe_weights(name, weights)
    in_readers = "    load_instance_masks: true\n    mask_type: PNG_MASKS\n" if learns_masks(config) else ""
    _next_steps(name, in_readers)


def _describe_weights(preset: str, weights: PublishedWeights) -> None:
    """Print what published weights of a preset are, the command that starts from them, and the field that does."""
    detects = weights.holds == "detector"
    source = f"--model {weights.name}" if detects else f"--model {preset} --weights {weights.name}"
    kind = "transfer" if detects else "classification"
    print(f"\nweights of {weights.publisher}, for the {weights.holds}: {weights.name}")
    print(f"  {weights.file}\n  license of the weights: {weights.license}; data: {', then '.join(weights.data)}")
    print(f"  boxwright train DATA {source}")
    print(f'  fine_tune_checkpoint: "{weights.name}" fine_tune_checkpoint_type: "{kind}"')


def _next_steps(name: str, in_readers: str) -> None:
    print(
        "\nNext, write my.config:\n\n"
        f'  preset: "{name}"\n'
        "  num_classes: 3\n"
        f"  train_input_reader {{\n{in_readers}"
        '    label_map_path: "map.pbtxt"\n'
        '    tf_record_input_reader { input_path: "train.record" }\n'
        "  }\n"
        f"  eval_input_reader {{\n{in_readers}"
        '    label_map_path: "map.pbtxt"\n'
        '    tf_record_input_reader { input_path: "val.record" }\n'
        "  }\n\n"
        "and run\n\n"
        "  boxwright doctor my.config\n"
        "  boxwright train --pipeline_config_path my.config --model_dir model"
    )
