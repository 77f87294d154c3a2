"""Whatever passes through RF-DETR's network, map by map, as its authors' code computes it; no array is left out."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from boxwright.families.rf_detr.decoder import Memory, cell_boxes
from boxwright.families.rf_detr.network import RfDetr, RfDetrPredictions
from boxwright.nn.postprocessing.queries import QueryPostprocessor
from boxwright.weights.load_weights import load_weights
from tests.rf_detrs import (
    NANO,
    build,
    described,
    folders,
    folders_with,
    images_of,
    network_of,
    picture,
    read_arrays,
    recorded,
    sizes_of,
    with_recorded_weights,
)

RECORDED = recorded()
each = pytest.mark.parametrize("path", RECORDED, ids=lambda path: f"{path.parent.parent.name}-{path.name}")
# The sines of positions that the authors' backbone returns, and their decoder drops.
UNUSED = ("sine.",)
# What tests/parity/test_rf_detr.py compares: inputs, targets, and detections; outputs in float64 are outputs.
ELSEWHERE = ("images", "mask", "target_", "detections.")
OF_MASKS = ("pred_masks", "spatial_features", "query_features", "draw.", "segmentation.", "target_masks.")


class Watch:
    """Notes what a network's modules return, under the authors' names."""

    def __init__(self, network: RfDetr) -> None:
        self.network, self.notes = network, dict[str, Tensor]()
        self.references: list[Tensor] = []
        self.scores: list[Tensor] = []
        self._watch_backbone()
        self._watch_selection()
        self._watch_decoder()

    def _watch_backbone(self) -> None:
        backbone, notes = self.network.backbone, self.notes
        for number, block in enumerate(backbone.blocks):
            if number == 0:
                block.register_forward_pre_hook(lambda _, args: notes.update(embeddings=args[0]))
            block.register_forward_hook(lambda _, args, out, n=number: notes.update({f"block.{n}": out}))
        backbone.register_forward_hook(lambda *given: self._note_all("feature", given[-1]))
        self.network.projector.register_forward_hook(lambda *given: self._note_all("projected", given[-1]))

    def _note_all(self, name: str, values: list[Tensor]) -> None:
        self.notes |= {f"{name}.{number}": value for number, value in enumerate(values)}

    def _watch_selection(self) -> None:
        queries, notes = self.network.queries, self.notes

        def note_boxes(_: nn.Module, args: tuple[Memory]) -> None:
            boxes, inside = cell_boxes(args[0])
            form = queries.layout.form
            notes["proposals.boxes"] = torch.where(inside[..., None], form.start(boxes), form.void)

        queries.register_forward_pre_hook(note_boxes)
        queries.enc_output[0].register_forward_pre_hook(lambda _, args: notes.update({"proposals.memory": args[0]}))
        for head in queries.enc_out_class_embed:
            head.register_forward_hook(lambda _, args, out: self.scores.append(out.amax(-1)))

    def _watch_decoder(self) -> None:
        decoder, notes = self.network.decoder, self.notes

        def note_layer(number: int, args: Any, out: Tensor) -> None:
            notes.setdefault("decoder.input", args[0])
            values = {"output": out, "query_pos": args[1], "reference": args[2]}
            notes.update({f"decoder.{number}.{name}": value for name, value in values.items()})

        def note_self_attention(number: int, out: Tensor) -> None:
            groups = decoder.layout.groups if self.network.training else 1
            # Theirs has all images of a group, then those of the next.
            notes[f"decoder.{number}.self_attention"] = out.unflatten(0, (-1, groups)).transpose(0, 1).flatten(0, 1)

        for number, layer in enumerate(decoder.layers):
            layer.register_forward_hook(lambda _, args, out, n=number: note_layer(n, args, out))
            layer.get_submodule("self_attn").register_forward_hook(
                lambda _, args, out, n=number: note_self_attention(n, out)
            )
            layer.get_submodule("cross_attn").register_forward_hook(
                lambda _, args, out, n=number: notes.update({f"decoder.{n}.cross_attention": out})
            )
        place = decoder._place

        def note_place(references: Tensor, memory: Memory) -> tuple[Tensor, Tensor]:
            self.references.append(references)
            return place(references, memory)

        decoder._place = note_place  # type: ignore[method-assign]

    def finish(self, outputs: RfDetrPredictions) -> dict[str, Tensor]:
        """Return all notes, with what follows from them and from the outputs."""
        decoder, notes = self.network.decoder, self.notes
        count = len(decoder.layers)
        references = self.references[:count] if decoder.layout.refines else self.references[:1]
        hidden = [decoder.norm(notes[f"decoder.{number}.output"]) for number in range(count)]
        notes |= {"hidden": torch.stack(hidden), "references": torch.stack(references)}
        for number in range(count):
            layer = decoder._detect(hidden[number], references[min(number, len(references) - 1)])
            prefix = "" if number == count - 1 else f"aux_outputs.{number}."
            notes |= {f"{prefix}pred_logits": layer.logits, f"{prefix}pred_boxes": layer.boxes}
        encoder = outputs.encoder
        notes |= {"enc_outputs.pred_logits": encoder.logits, "enc_outputs.pred_boxes": encoder.boxes}
        notes["selected.memory"] = encoder.features
        notes["selected.boxes"] = encoder.boxes
        scores = torch.stack(self.scores)
        best = scores.topk(min(decoder.layout.queries, scores.shape[-1]), dim=-1).indices
        # Outside of training there is one group, which has no dimension of its own.
        notes |= (
            {"selected.scores": scores, "selected.index": best}
            if self.network.training
            else {
                "selected.scores": scores[0],
                "selected.index": best[0],
            }
        )
        return notes


def compare(notes: dict[str, Tensor], wanted: dict[str, Tensor], elsewhere: tuple[str, ...]) -> int:
    """Compare every array, but those that are compared elsewhere; return how many there were."""
    names = [name for name in wanted if not name.startswith(elsewhere) and not any(part in name for part in OF_MASKS)]
    for name in names:
        value, array = notes[name.removesuffix("64")], wanted[name].double()
        assert value.shape == array.shape, name
        finite = array.isfinite()
        assert torch.equal(value.isfinite(), finite), name
        distance = (value.double() - array)[finite].abs().max()
        assert float(distance) <= allowed(name, array[finite]), name
    return len(names)


def allowed(name: str, values: Tensor) -> float:
    """Return the tolerance of an array, by the authors' float32 against their float64."""
    if name.endswith("index"):
        return 0.0
    if "logits" in name or name == "selected.scores":
        return 1e-4
    if "boxes" in name or "reference" in name:
        return 1e-6 * max(1.0, float(values.abs().max()))
    return 1e-5 * float(values.abs().max())


@each
@torch.no_grad()
def test_every_array_of_detection(path: Path) -> None:
    network, wanted, images = network_of(path), read_arrays(path, "eval"), images_of(path)
    watch = Watch(network)
    outputs = network(images, sizes_of(images))
    layers, blocks = len(network.decoder.layers), len(network.backbone.blocks)
    maps, levels = len(network.backbone.layout.taken), network.decoder.layout.levels
    # Embeddings; five of the cells; the decoder's input, hidden states and references; two sets beside the layers'.
    known = 1 + blocks + maps + levels + 6 + 3 + 5 * layers + 2 * layers + 2 + 2
    assert compare(watch.finish(outputs), wanted, (*ELSEWHERE, *UNUSED)) == known


@each
@torch.no_grad()
def test_every_array_of_training(path: Path) -> None:
    network, wanted, images = network_of(path).train(), read_arrays(path, "train"), images_of(path)
    watch = Watch(network)
    outputs = network(images, sizes_of(images))
    layers, levels = len(network.decoder.layers), network.decoder.layout.levels
    assert compare(watch.finish(outputs), wanted, ELSEWHERE) == levels + 6 + 3 + 5 * layers + 2 * layers + 2 + 2


@each
@torch.no_grad()
def test_every_array_of_padded_images(path: Path) -> None:
    network, wanted = network_of(path), read_arrays(path, "padded")
    inside = wanted["mask"].logical_not()
    watch = Watch(network)
    outputs = network(wanted["images"], torch.stack([inside.any(2).sum(1), inside.any(1).sum(1)], 1))
    assert compare(watch.finish(outputs), wanted, ELSEWHERE) == 2 * len(network.decoder.layers) + 2


def test_no_array_is_of_an_unknown_kind() -> None:
    """What the tests above leave out by its name is compared by the module of detections, losses and masks."""
    assert {path.name for path in RECORDED} >= {"tiny", "few_cells"}
    for path in RECORDED:
        left = [name for name in read_arrays(path, "eval") if name.startswith((*ELSEWHERE, *UNUSED))]
        assert {name.split(".")[0] for name in left} == {"images", "sine", "detections"}
        names = np.load(path.with_name(f"{path.name}.train.npz")).files
        assert {"target_boxes_cxcywh", "target_labels", "target_valid"} <= set(names)


@pytest.mark.parametrize("folder", folders_with("nano.eval.npz"), ids=lambda folder: folder.parent.name)
@torch.no_grad()
def test_every_array_of_nano(folder: Path) -> None:
    """The published size: outputs and places of queries whole, maps by 4000 of their numbers."""
    config = json.loads((folder / "nano.config.json").read_text())
    wanted = {name: torch.from_numpy(value) for name, value in np.load(folder / "nano.eval.npz").items()}
    detector = with_recorded_weights(build(NANO), config["salt"])
    network = detector.network
    assert isinstance(network, RfDetr)
    pixels = torch.from_numpy(picture(config["salt"], "image0", *config["size"]))
    images, sizes = detector.preprocessor(pixels[None])
    watch = Watch(network)
    outputs = network(images, sizes)
    notes = watch.finish(outputs)
    sampled = {name.removesuffix("@index") for name in wanted if name.endswith("@index")}
    assert len(sampled) == 7
    for name in sampled:
        assert list(notes[name].shape) == wanted[f"{name}@shape"].tolist()
        found = notes[name].double().flatten()[wanted[f"{name}@index"].long()]
        largest = float(wanted[f"{name}@stats"].abs().max())
        assert float((found - wanted[f"{name}@value"].double()).abs().max()) <= 1e-5 * max(largest, 1.0), name
    whole = {name: value for name, value in wanted.items() if "@" not in name}
    assert compare(notes, whole, ELSEWHERE) == 6
    postprocessor = detector.postprocessor
    assert isinstance(postprocessor, QueryPostprocessor)
    # The recorded head has the row of no class last, and detects it; near-equal scores may exchange places.
    postprocessor = replace(postprocessor, background=0)
    detections = postprocessor.select(outputs, postprocessor.decode(outputs), sizes).image(0)
    scale = torch.tensor([640, 480, 640, 480]) / 384
    compare_as_sets(detections.labels, detections.scores, detections.boxes * scale, wanted)


def compare_as_sets(labels: Tensor, scores: Tensor, boxes: Tensor, wanted: dict[str, Tensor]) -> None:
    """Check that each recorded detection is there: its label, its score within 1e-5, its box within 1e-3 pixels."""
    rows = torch.cat([labels[:, None], scores[:, None], boxes], 1).double()
    known = torch.cat(
        [wanted["detections.labels"][:, None], wanted["detections.scores"][:, None], wanted["detections.boxes"]], 1
    ).double()
    assert rows.shape == known.shape
    limits = torch.tensor([0.5, 1e-5, *[1e-3] * 4], dtype=torch.float64)
    distances = ((rows[:, None] - known[None]).abs() / limits).amax(-1)
    assert float(distances.amin(0).max()) <= 1
    assert float(distances.amin(1).max()) <= 1


@pytest.mark.parametrize("folder", folders(), ids=lambda folder: folder.parent.name)
@torch.no_grad()
def test_every_array_of_a_file(folder: Path) -> None:
    """Of a network from a file, whose row of no class, their last, is our first."""
    config = json.loads((folder / "files.json").read_text())
    wanted = {name: torch.from_numpy(value) for name, value in np.load(folder / "files.npz").items()}
    detector = build(described(config)).eval()
    load_weights(detector, folder / "best_total.pth", scope="full")
    network, images = detector.network, wanted["images"]
    assert isinstance(network, RfDetr)
    watch = Watch(network)
    notes = watch.finish(network(images, sizes_of(images)))
    notes = {name: value.roll(-1, -1) if name.endswith("logits") else value for name, value in notes.items()}
    assert compare(notes, wanted, ELSEWHERE) == len(wanted) - 1 == 6
