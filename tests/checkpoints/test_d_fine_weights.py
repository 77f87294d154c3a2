"""Weights of D-FINE: the authors' files and those of the transformers library, by name, both ways."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor

import boxwright as bw
from boxwright.base.errors import CheckpointError
from boxwright.builders.d_fine import SIZES
from boxwright.checkpoints.d_fine_names import authors_name, is_ignored, our_name, to_transformers
from boxwright.config import messages as m
from boxwright.config import parse_message
from boxwright.types import Categories, Category
from tests.d_fines import D_FINE
from tests.slow import slow_but


def small(text: str = D_FINE, seed: int = 0, names: tuple[str, ...] = ("a", "b", "c", "d")) -> bw.Detector:
    torch.manual_seed(seed)
    text = text.replace("num_classes: 4", f"num_classes: {len(names)}")
    categories = Categories(tuple(Category(n, n + 1, name) for n, name in enumerate(names)))
    return bw.build_detector(parse_message(text, m.DetectionModel), categories)


def state_of(detector: bw.Detector) -> dict[str, Tensor]:
    return {n: v for n, v in detector.network.state_dict().items() if not n.endswith("num_batches_tracked")}


def authors_file(state: dict[str, Tensor]) -> dict[str, Tensor]:
    """Return weights as the authors write them, with what else they write."""
    tensors = {authors_name(name): value.clone() for name, value in state.items()}
    tensors |= {"decoder.anchors": torch.zeros(1, 9, 4), "decoder.valid_mask": torch.ones(1, 9, 1, dtype=torch.bool)}
    tensors["decoder.decoder.up"] = torch.tensor([0.5])
    tensors["decoder.decoder.layers.0.cross_attn.num_points_scale"] = torch.ones(12)
    return tensors


@pytest.mark.parametrize("wrapped", slow_but("ema".__eq__, ["plain", "model", "ema"]))
def test_the_authors_files(tmp_path: Path, wrapped: str) -> None:
    source, target, path = small(), small(seed=1), tmp_path / "dfine.pth"
    tensors = authors_file(state_of(source))
    worse = {name: torch.zeros_like(value) for name, value in tensors.items()}
    content = {
        "plain": tensors,
        "model": {"model": tensors, "last_epoch": 3},
        "ema": {"model": worse, "ema": {"module": tensors, "updates": 3}, "date": "today"},
    }
    torch.save(content[wrapped], path)
    report = bw.load_weights(target, path)
    assert all(torch.equal(value, state_of(target)[name]) for name, value in state_of(source).items())
    assert all(is_ignored(name) for name in report.unused)
    assert len(report.unused) == 4


def test_files_of_transformers(tmp_path: Path) -> None:
    source, target, path = small(), small(seed=1), tmp_path / "model.safetensors"
    save_file(to_transformers(state_of(source)), path)
    assert not bw.load_weights(target, path).unused
    assert all(torch.equal(value, state_of(target)[name]) for name, value in state_of(source).items())
    tensors = to_transformers(state_of(source))
    del tensors["model.decoder.layers.0.self_attn.k_proj.bias"]
    save_file(tensors, path)
    with pytest.raises(CheckpointError, match="has only some of model.decoder.layers.0.self_attn.q_proj.bias"):
        bw.load_weights(target, path)


@pytest.mark.slow_except("N", "S")
@pytest.mark.parametrize("size", SIZES)
def test_names_of_every_size_are_all_different_and_go_both_ways(size: str) -> None:
    text = f"d_fine {{ num_classes: 80 size: {size} image_resizer {{ fixed_shape_resizer {{ height: 640 width: 640 }} }} }}"
    names = list(state_of(bw.build_detector(parse_message(text, m.DetectionModel))))
    theirs = [authors_name(name) for name in names]
    assert len(set(theirs)) == len(names)
    assert [our_name(name) for name in theirs] == names


def test_classes_are_kept_by_name(tmp_path: Path) -> None:
    """Rows of every classifier and of the embedding, whose row for padding comes last and stays 0."""
    source, target = small(), small(seed=1, names=("d", "new", "b"))
    fresh = {name: value.clone() for name, value in state_of(target).items()}
    from boxwright.checkpoints.class_surgery import ClassSurgery, map_classes

    assert source.categories is not None
    assert target.categories is not None
    surgery = ClassSurgery(source.categories, target.categories, 3)
    mapped = map_classes(target.network, state_of(source), surgery)
    assert mapped is not None
    # Two layers and the encoder's, weight and bias, and the embedding.
    assert len(mapped) == 7
    for name, value in mapped.items():
        before = state_of(source)[name]
        assert torch.equal(value[0], before[3])
        assert torch.equal(value[2], before[1])
        assert torch.equal(value[1], fresh[name][1])
    embedding = mapped["queries.denoising_class_embed.weight"]
    assert embedding.shape == (4, 16)
    assert embedding[3].abs().max() == 0


@pytest.mark.parametrize(
    ("name", "activation"), [("dfine_n_coco.pth", "RELU"), ("deim_dfine_hgnetv2_n_coco.pth", "SILU")]
)
def test_a_file_of_the_authors_is_opened_without_a_configuration(tmp_path: Path, name: str, activation: str) -> None:
    text = f"""d_fine {{ num_classes: 4 size: N decoder {{ activation: {activation} num_queries: 300 }}
      image_resizer {{ fixed_shape_resizer {{ height: 640 width: 640 resize_method: BILINEAR_ANTIALIASED }} }} }}"""
    source = small(text).eval()
    torch.save({"model": authors_file(state_of(source))}, tmp_path / name)
    opened = bw.load(tmp_path / name, device="cpu")
    model = opened.config.model
    assert model is not None
    assert (model.d_fine.size.name, model.d_fine.num_classes) == ("N", 4)
    assert model.d_fine.decoder.activation.name == activation
    inputs = torch.rand(1, 3, 96, 64, generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        first, second = source.predict(inputs), opened.detector.eval().predict(inputs)
    assert torch.equal(first.queries.layers[-1].logits, second.queries.layers[-1].logits)


def test_a_file_of_transformers_brings_its_classes(tmp_path: Path) -> None:
    text = "d_fine { num_classes: 4 size: N image_resizer { fixed_shape_resizer { height: 640 width: 640 } } }"
    save_file(to_transformers(state_of(small(text))), tmp_path / "model.safetensors")
    (tmp_path / "config.json").write_text(
        '{"id2label": {"0": "cat", "1": "dog", "2": "cow", "3": "hen"}, "decoder_activation_function": "relu", "num_queries": 50}'
    )
    opened = bw.load(tmp_path / "model.safetensors", device="cpu")
    assert opened.detector.categories is not None
    assert [one.name for one in opened.detector.categories] == ["cat", "dog", "cow", "hen"]
    assert opened.config.model.d_fine.decoder.num_queries == 50  # type: ignore[union-attr]


def test_what_tells_nothing_is_refused_in_a_line(tmp_path: Path) -> None:
    torch.save({"layer.weight": torch.zeros(3)}, tmp_path / "other.pth")
    with pytest.raises(CheckpointError, match="names do not tell; pass the configuration"):
        bw.load(tmp_path / "other.pth", device="cpu")
    torch.save(authors_file(state_of(small())), tmp_path / "small.pth")
    with pytest.raises(CheckpointError, match="of none of D-FINE's sizes N, S, M, L, X; pass the configuration"):
        bw.load(tmp_path / "small.pth", device="cpu")
    (tmp_path / "config.json").write_text("{")
    save_file(to_transformers(state_of(small())), tmp_path / "model.safetensors")
    with pytest.raises(CheckpointError, match=r"config.json: not readable as JSON"):
        bw.load(tmp_path / "model.safetensors", device="cpu")
    for said in ('{"num_queries": 5}', '{"backbone_config": {"stem_channels": 3}}', '{"backbone_config": []}'):
        (tmp_path / "config.json").write_text(said)
        with pytest.raises(CheckpointError, match="config.json beside it does not describe a D-FINE: "):
            bw.load(tmp_path / "model.safetensors", device="cpu")
