"""Weights of D-FINE: the authors' files and those of the transformers library, by name, both ways."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import save_file
from torch import Tensor
from typer.testing import CliRunner

import boxwright as bw
from boxwright.base.errors import CheckpointError
from boxwright.base.safetensors_file import read_safetensors
from boxwright.cli.main import app
from boxwright.config.load import parse_message
from boxwright.families.d_fine.layouts import SIZES
from boxwright.families.d_fine.weights import authors_name, is_ignored, our_name, to_transformers
from boxwright.pipeline import messages as m
from boxwright.types import Categories, Category
from boxwright.types.categories import coco_classes
from boxwright.weights.export_weights import write_transformers
from tests.d_fines import D_FINE, recorded


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


@pytest.mark.slow_except("ema")
@pytest.mark.parametrize("wrapped", ["plain", "model", "ema"])
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
    from boxwright.weights.load_weights import ClassSurgery, map_classes

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


@pytest.mark.slow_cases("dfine_n_coco.pth-RELU")
@pytest.mark.parametrize(
    ("name", "activation"), [("dfine_n_coco.pth", "RELU"), ("deim_dfine_hgnetv2_n_coco_160e.pth", "SILU")]
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


@pytest.mark.parametrize("name", ["dfine_n.pth", "my_deim_run.pth", "best_stg2.pth"])
def test_the_activation_is_not_guessed(tmp_path: Path, name: str) -> None:
    """Names that only resemble published ones decide nothing; the configuration does, and so does RT-DETRv4's file."""
    text = """d_fine { num_classes: 4 size: N decoder { activation: SILU num_queries: 300 }
      image_resizer { fixed_shape_resizer { height: 64 width: 64 resize_method: BILINEAR_ANTIALIASED } } }"""
    state = authors_file(state_of(small(text)))
    torch.save({"model": state}, tmp_path / name)
    with pytest.raises(
        CheckpointError,
        match=f"{name}: nothing in it tells the activation .*preset:d_fine_n_coco .RELU.* --set num_classes=4",
    ):
        bw.load(tmp_path / name, device="cpu")
    config = bw.load_config("preset:deim_d_fine_n_coco", ["num_classes=4"])
    opened = bw.load(tmp_path / name, device="cpu", config=config)
    assert opened.step == 0
    assert opened.config.model is not None
    assert opened.config.model.d_fine.decoder.activation.name == "SILU"
    state["encoder.feature_projector.0.weight"] = torch.zeros(3)
    whole = {"date": "2026", "last_epoch": 3, "ema": {"module": state, "updates": 7}, "optimizer": {"state": {}}}
    torch.save(whole, tmp_path / "state.pth")
    model = bw.load(tmp_path / "state.pth", device="cpu").config.model
    assert model is not None
    assert model.d_fine.decoder.activation.name == "SILU"


def training_state(state: dict[str, Tensor], **schedulers: object) -> dict[str, object]:
    """Return what a solver of the authors' saves: every part with a state, from real optimizers and scalers."""
    parameter = torch.nn.Parameter(torch.zeros(2))
    optimizer = torch.optim.AdamW([parameter], lr=0.1)
    parameter.sum().backward()
    optimizer.step()
    steps = torch.optim.lr_scheduler.MultiStepLR(optimizer, [500])
    parts = {"lr_scheduler": steps.state_dict(), **schedulers}
    return {
        "date": "2025-01-01T00:00:00", "last_epoch": 11, "model": {name: value * 0 for name, value in state.items()},
        "criterion": {}, "postprocessor": {}, "ema": {"module": state, "updates": 700},
        "scaler": torch.amp.GradScaler("cpu").state_dict(), "optimizer": optimizer.state_dict(),
        "lr_warmup_scheduler": {"warmup_duration": 500, "last_step": 500, "warmup_end_values": [0.1]},
        **{name: part for name, part in parts.items() if part is not None},
    }  # fmt: skip


@pytest.mark.parametrize("scheduler", [{}, {"lr_scheduler": None}], ids=["saved", "without a state"])
def test_a_training_state_does_not_tell_the_activation(tmp_path: Path, scheduler: dict[str, object]) -> None:
    """A scheduler is saved or not by what a run's settings say, in D-FINE's code as in DEIM's."""
    text = """d_fine { num_classes: 4 size: N decoder { num_queries: 300 }
      image_resizer { fixed_shape_resizer { height: 64 width: 64 } } }"""
    state = authors_file(state_of(small(text)))
    path = tmp_path / "best_stg2.pth"
    torch.save(training_state(state, **scheduler), path)
    with pytest.raises(CheckpointError, match=r"best_stg2.pth: nothing in it tells .*--set num_classes=4"):
        bw.load(path, device="cpu")
    opened = bw.load(path, device="cpu", config=bw.load_config("preset:d_fine_n_coco", ["num_classes=4"]))
    scores = opened.detector.network.state_dict()["decoder.dec_score_head.0.weight"]
    assert torch.equal(scores, state["decoder.dec_score_head.0.weight"])
    # As the error says it, on the command line.
    target = tmp_path / "own.safetensors"
    words = ["export", str(path), str(target), "--config", "preset:d_fine_n_coco", "--set", "num_classes=4"]
    assert CliRunner().invoke(app, words, catch_exceptions=False).exit_code == 0
    assert torch.equal(read_safetensors(target)["decoder.dec_score_head.0.weight"], scores)


@pytest.mark.parametrize(
    ("name", "size", "activation"), [("RTv4-S-hgnet.pth", "S", "SILU"), ("dfine_s_obj365.pth", "S", "RELU")]
)
def test_what_a_published_files_name_says(tmp_path: Path, name: str, size: str, activation: str) -> None:
    """By the whole name; 366 classes are Objects365's, of which the first is unused."""
    classes = 366 if "obj365" in name else 80
    text = f"d_fine {{ num_classes: {classes} size: {size} image_resizer {{ fixed_shape_resizer {{ height: 64 width: 64 }} }} }}"
    detector = bw.build_detector(parse_message(text, m.DetectionModel))
    torch.save({"ema": {"module": authors_file(state_of(detector))}}, tmp_path / name)
    opened = bw.load(tmp_path / name, device="cpu")
    assert opened.config.model is not None
    assert opened.config.model.d_fine.decoder.activation.name == activation
    assert opened.config.model.d_fine.num_classes == classes
    assert opened.detector.categories is not None
    assert opened.detector.categories.by_label(79).name == ("toothbrush" if classes == 80 else "Horse")


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


USER = ("dog", "new", "person", "zebra")


@pytest.mark.slow_cases("transformers, as Darknet")
@pytest.mark.parametrize("layout", ["authors", "transformers", "transformers, as Darknet"])
def test_rows_of_published_classes_are_kept_by_name(tmp_path: Path, layout: str) -> None:
    """The authors' 80 are COCO's, which their files do not say; transformers' are in its configuration."""
    names = [one.name for one in coco_classes()]
    source, target = small(names=tuple(names)), small(seed=1, names=USER)
    before, fresh = state_of(source), {name: value.clone() for name, value in state_of(target).items()}
    path = tmp_path / ("dfine.pth" if layout == "authors" else "model.safetensors")
    if layout == "authors":
        torch.save({"model": authors_file(before)}, path)
    else:
        if "Darknet" in layout:
            other = {"motorcycle": "motorbike", "airplane": "aeroplane", "couch": "sofa", "potted plant": "pottedplant"}
            other |= {"dining table": "diningtable", "tv": "tvmonitor"}
            names = [other.get(name, name) for name in names]
        save_file(to_transformers(before), path)
        (tmp_path / "config.json").write_text(json.dumps({"id2label": dict(enumerate(names))}))
    report = bw.load_weights(target, path, "transfer")
    assert report.classes == "classes: dog, person, zebra kept by name; new start fresh"
    after = state_of(target)
    rows = {0: 16, 2: 0, 3: 22}  # dog, person and zebra among COCO's
    for name in ("queries.enc_score_head", "decoder.dec_score_head.0", "decoder.dec_score_head.1"):
        for part in ("weight", "bias"):
            found, old = after[f"{name}.{part}"], before[f"{name}.{part}"]
            assert all(torch.equal(found[new], old[row]) for new, row in rows.items())
            assert torch.equal(found[1], fresh[f"{name}.{part}"][1])
    embedding = after["queries.denoising_class_embed.weight"]
    assert all(
        torch.equal(embedding[new], before["queries.denoising_class_embed.weight"][row]) for new, row in rows.items()
    )
    others = [name for name in after if "score_head" not in name and "denoising" not in name]
    assert all(torch.equal(after[name], before[name]) for name in others)


# D-FINE's authors' rows of Objects365 for six of COCO's classes, in `obj365_ids` of their solver, counted from the unused.
OBJECTS365_ROWS = {
    "person": 1,
    "suitcase": 121,
    "teddy bear": 71,
    "aeroplane": 115,
    "sports ball": 166,
    "hair drier": 329,
}


def test_rows_of_objects365_are_kept_by_name(tmp_path: Path) -> None:
    """Also where COCO's or VOC's name of a class is another than Objects365's."""
    source, target = small(names=tuple(map(str, range(366)))), small(seed=1, names=(*OBJECTS365_ROWS, "new"))
    before, fresh = state_of(source), {name: value.clone() for name, value in state_of(target).items()}
    torch.save({"model": authors_file(before)}, tmp_path / "any.pth")
    report = bw.load_weights(target, tmp_path / "any.pth", "transfer")
    assert report.classes == (
        "classes: person (Person), suitcase (Luggage), teddy bear (Stuffed Toy), aeroplane (Airplane), "
        "sports ball (Baseball), hair drier (Hair Dryer) kept by name; new start fresh"
    )
    name = "decoder.dec_score_head.1.weight"
    found = state_of(target)[name]
    for label, row in enumerate(OBJECTS365_ROWS.values()):
        assert torch.equal(found[label], before[name][row])
    assert torch.equal(found[-1], fresh[name][-1])


def test_classes_that_no_file_says_start_fresh(tmp_path: Path) -> None:
    """Of the authors' layout with another number than 80."""
    torch.save(authors_file(state_of(small())), tmp_path / "own.pth")
    target = small(seed=1, names=("a", "b"))
    report = bw.load_weights(target, tmp_path / "own.pth", "transfer")
    assert not report.classes
    assert "decoder.dec_score_head.0.weight" in report.kept


def test_a_folder_for_transformers_and_back(tmp_path: Path) -> None:
    text = D_FINE.replace("num_layers: 2", "num_layers: 2 taps: [3, 6, 3]")
    text = text.replace("encoder {", "feature_extractor { layout { stem: [8, 8] middle: [4, 4, 8, 8] out: [8, 16, 24, 32]"
      " blocks: [1, 1, 2, 1] layers: 2 affine: false } strides: [8, 16, 32] } encoder {", 1)  # fmt: skip
    source = small(text, names=("cat", "dog", "bird"))
    config = parse_message(f"model {{ {text.replace('num_classes: 4', 'num_classes: 3')} }}", m.TrainEvalPipelineConfig)
    with torch.no_grad():
        source.network.decoder.reg_scale.fill_(8)  # type: ignore[union-attr, operator]
    source.eval()
    written = write_transformers(source, config, tmp_path / "hub")
    assert sorted(one.name for one in (tmp_path / "hub").iterdir()) == [
        *("config.json", "model.safetensors", "preprocessor_config.json"),
    ]
    opened = bw.load(written, device="cpu")
    assert opened.detector.categories is not None
    assert [one.name for one in opened.detector.categories] == ["cat", "dog", "bird"]
    assert opened.detector.preprocessor.resizer.output_size == (64, 96)
    inputs = torch.rand(2, 3, 64, 96, generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        first, second = source.predict(inputs), opened.detector.eval().predict(inputs)
    for one, other in zip(first.queries.layers, second.queries.layers, strict=True):
        assert torch.equal(one.logits, other.logits)
        assert torch.equal(one.boxes, other.boxes)
    # Transformers' own layout of weights asks for this.
    with safe_open(written, "pt") as file:
        assert file.metadata()["format"] == "pt"


@pytest.mark.parametrize(
    ("model", "problem"),
    [
        ("ssd", "only D-FINE has a layout of transformers'"),
        (
            D_FINE.replace("encoder {", 'feature_extractor { type: "timm/hgnetv2_b0" } encoder {'),
            "no backbone of timm's",
        ),
        (D_FINE.replace("resize_method: BILINEAR_ANTIALIASED", ""), "its preprocessing antialiases"),
        (D_FINE.replace("num_layers: 2", "num_layers: 2 activation: SILU"), "has ReLU in the layers of boxes"),
        (
            D_FINE.replace("height: 64 width: 96", "height: 64 width: 96 convert_to_grayscale: true"),
            "red, green and blue",
        ),
    ],
    ids=["ssd", "timm", "resizing", "deim", "gray"],
)
def test_what_transformers_has_no_place_for(tmp_path: Path, model: str, problem: str) -> None:
    from tests.conftest import SMALL_MODEL

    text = SMALL_MODEL if model == "ssd" else f"model {{ {model} }}"
    config = parse_message(text, m.TrainEvalPipelineConfig)
    with pytest.raises(CheckpointError, match=problem):
        write_transformers(bw.build_detector(config), config, tmp_path / "hub")
    assert not (tmp_path / "hub").exists()


@pytest.mark.slow_cases("three_levels", "wide_encoder")
@pytest.mark.parametrize("recording", [path.name for path in recorded()])
def test_the_layout_is_that_of_recorded_files(tmp_path: Path, recording: str) -> None:
    """Names, shapes and constants of what transformers itself has written, and what its configuration says of the shape."""
    path = next(path for path in recorded() if path.name == recording)
    folder = tmp_path / "theirs"
    folder.mkdir()
    (folder / "config.json").write_bytes(path.with_name(f"{recording}.config.json").read_bytes())
    (folder / "model.safetensors").write_bytes(path.with_name(f"{recording}.safetensors").read_bytes())
    opened = bw.load(folder / "model.safetensors", device="cpu")
    written = write_transformers(opened.detector, opened.config, tmp_path / "ours")
    ours, theirs = (read_safetensors(one) for one in (written, folder / "model.safetensors"))
    wanted = {name for name in theirs if not name.endswith("num_batches_tracked")}
    assert {name for name in ours if not name.endswith("num_batches_tracked")} == wanted
    assert all(torch.equal(ours[name], theirs[name]) for name in wanted)
    said, known = (json.loads((one / "config.json").read_text()) for one in (tmp_path / "ours", folder))
    body, theirs_body = said.pop("backbone_config"), known.pop("backbone_config")
    for own, other in ((said, known), (body, theirs_body)):
        # Not a shape: rounded by both, drawn in training only, or unread beside the lists of the stages.
        free = {
            "depth_mult",
            "num_denoising",
            "freeze_backbone_batch_norms",
            "embedding_size",
            "hidden_sizes",
            "depths",
        }
        assert {
            name: value for name, value in own.items() if name not in free and other.get(name, value) != value
        } == {}
    assert round(3 * said["depth_mult"]) == round(3 * known["depth_mult"])
