"""From a name to a detector: loaded, predicted with, fine-tuned; offline; and the pedigree that all of it keeps."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from typer.testing import CliRunner

import boxwright as bw
from boxwright.cli.main import app
from boxwright.families.d_fine.message import DFine
from boxwright.families.d_fine.weights import authors_name
from boxwright.training.autoconfig.choices import InitSettings
from boxwright.training.autoconfig.start import init_config
from boxwright.weights.fetch import fetch_published, identify_published
from boxwright.weights.fetching import Fetching
from boxwright.weights.pedigree import describe_origin, require_licenses
from boxwright.weights.published import find_published, published_weights
from tests.weights.file_server import FileServer, file_server, ranges
from tests.weights.tensorflow.test_first_formats import CONFIG, WEIGHTS, archive, write

NAME, FILE = "d_fine_made_up_coco", "made_up_dfine_n_coco.pth"
SIZE = "model.d_fine.image_resizer.fixed_shape_resizer"
SMALL = (f"{SIZE}.height=128", f"{SIZE}.width=128")


@pytest.fixture(scope="module")
def weights(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    """A file of D-FINE-N as its authors' are: their names, one key, no classes; with random weights."""
    torch.manual_seed(3)
    detector = bw.build_detector(bw.load_config("preset:d_fine_n_coco", SMALL))
    path = tmp_path_factory.mktemp("weights") / FILE
    torch.save({"model": {authors_name(name): value for name, value in detector.network.state_dict().items()}}, path)
    return path.read_bytes()


@pytest.fixture
def server(weights: bytes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[FileServer]:
    """A server that has the file, and a table that names it; the cache is empty, and the folder is a new one."""
    with file_server(ranges(weights)) as running:
        overrides = ", ".join(json.dumps(change) for change in SMALL)
        (tmp_path / "table.toml").write_text(
            '[made_up]\npublisher = "nobody"\npage = "https://example.com/page"\nlicense = "Apache-2.0"\n'
            'code_license = "MIT"\ndata = ["COCO 2017"]\nclasses = "coco80"\nshown = "not shown"\n'
            f'address = "{running.address}/{{file}}"\n[made_up.weights.{NAME}]\nfile = "{FILE}"\n'
            f'size = {len(weights)}\nsha256 = "{hashlib.sha256(weights).hexdigest()}"\ndigest_by = "publisher"\n'
            f'presets = ["d_fine_n_coco"]\noverrides = [{overrides}]\n'
        )
        monkeypatch.setenv("BOXWRIGHT_WEIGHTS_TABLE", str(tmp_path / "table.toml"))
        monkeypatch.setenv("BOXWRIGHT_WEIGHTS", str(tmp_path / "cache"))
        (tmp_path / "work").mkdir()
        monkeypatch.chdir(tmp_path / "work")
        published_weights.cache_clear()
        yield running
    published_weights.cache_clear()


def picture(seed: int = 0) -> np.ndarray[tuple[int, ...], np.dtype[np.uint8]]:
    return np.random.default_rng(seed).integers(0, 256, (96, 128, 3), dtype=np.uint8)


def test_a_name_is_fetched_once(server: FileServer, capsys: pytest.CaptureFixture[str]) -> None:
    model = bw.load(NAME, device="cpu")
    said = capsys.readouterr().err
    assert said.count("\n") == 1
    assert f"fetching {FILE} (15." in said
    assert "license of the weights: Apache-2.0; trained on COCO 2017." in said
    assert model.names[:2] == ["person", "bicycle"]
    assert len(model.names) == 80
    again = bw.load(NAME, device="cpu")
    assert len(server.requests) == 1
    assert capsys.readouterr().err == ""
    first, second = (one(picture(), min_score=0.0) for one in (model, again))
    assert len(first.boxes) == 300
    assert np.array_equal(first.boxes, second.boxes)


def test_a_file_carried_by_hand_is_known_by_its_digest(
    server: FileServer, weights: bytes, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Under any name, anywhere; and in the cache, without a connection."""
    carried = tmp_path / "from a stick.pth"
    carried.write_bytes(weights)
    assert bw.load(carried, device="cpu").config.pedigree[0].name == NAME
    (tmp_path / "cache").mkdir()
    carried.rename(tmp_path / "cache" / FILE)
    assert bw.load(NAME, device="cpu").config.pedigree[0].publisher == "nobody"
    assert server.requests == []
    assert capsys.readouterr().err == ""


def test_offline_it_says_how_to_carry_it(server: FileServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BOXWRIGHT_OFFLINE", "1")
    with pytest.raises(bw.CheckpointError) as raised:
        bw.load(NAME)
    said = str(raised.value)
    assert "\n" not in said
    for part in ("BOXWRIGHT_OFFLINE is set", FILE, server.address, str(tmp_path / "cache" / FILE)):
        assert part in said
    assert server.requests == []


def test_another_file_is_refused(server: FileServer, weights: bytes, tmp_path: Path) -> None:
    changed = weights[:-100] + bytes(100)
    (tmp_path / "cache").mkdir()
    (tmp_path / "cache" / FILE).write_bytes(changed)
    with pytest.raises(bw.CheckpointError, match=f"its SHA-256 is {hashlib.sha256(changed).hexdigest()}, but that of"):
        bw.load(NAME)
    entry = find_published(NAME)
    assert entry is not None
    (tmp_path / "cache" / FILE).unlink()
    wrong = replace(entry, sha256="0" * 64)
    with pytest.raises(bw.CheckpointError, match="but that of d_fine_made_up_coco is 0000"):
        fetch_published(wrong)
    assert not list((tmp_path / "cache").glob("[!.]*.pth*"))


def test_without_a_digest_the_first_is_recorded(server: FileServer, weights: bytes, tmp_path: Path) -> None:
    entry = find_published(NAME)
    assert entry is not None
    unstated = replace(entry, sha256="", digest_by="", size=None)
    path = fetch_published(unstated)
    assert identify_published(path) == (entry, hashlib.sha256(weights).hexdigest())
    path.write_bytes(weights + b"more")
    with pytest.raises(bw.CheckpointError, match="it has changed: .*boxwright weights fetch .* --again"):
        fetch_published(unstated)
    assert fetch_published(unstated, Fetching(again=True)).read_bytes() == weights


def test_a_mirror_is_asked_in_place(server: FileServer, monkeypatch: pytest.MonkeyPatch) -> None:
    entry = find_published(NAME)
    assert entry is not None
    monkeypatch.setenv("BOXWRIGHT_WEIGHTS_MIRROR", f"{server.address}/mirror/")
    with pytest.raises(bw.CheckpointError, match="a mirror's file cannot be checked"):
        fetch_published(replace(entry, sha256="", digest_by=""))
    fetch_published(replace(entry, address="https://example.invalid/never"))
    assert [path for path, _ in server.requests] == [f"/mirror/{FILE}"]


def test_a_page_in_place_of_the_file_is_no_weights(server: FileServer, tmp_path: Path) -> None:
    entry = find_published(NAME)
    assert entry is not None
    with file_server(ranges(b"<xml>AccessDenied</xml>")) as other:
        unstated = replace(entry, address=f"{other.address}/a.pth", sha256="", digest_by="", size=None)
        with pytest.raises(bw.CheckpointError, match=r"what arrived is no .pth file: it begins with b'<xml>Acc'"):
            fetch_published(unstated)
    assert not list((tmp_path / "cache").glob("[!.]*.pth*"))


def test_a_path_wins_over_a_name(server: FileServer, tmp_path: Path) -> None:
    Path(NAME).mkdir()
    with pytest.raises(bw.CheckpointError, match="no checkpoint in this folder"):
        bw.load(NAME)
    assert server.requests == []


def test_unknown_names_are_answered_with_near_ones() -> None:
    with pytest.raises(bw.CheckpointError, match="dfine_s_coco: no such run.*d_fine_s_coco"):
        bw.load("dfine_s_coco")
    with pytest.raises(bw.CheckpointError, match="resnet50_torchvision: a backbone's weights"):
        find_published("resnet50_torchvision").configuration()  # type: ignore[union-attr]


def test_predict_by_name(server: FileServer, tmp_path: Path) -> None:
    Image.fromarray(picture()).save("a.png")
    done = CliRunner().invoke(app, ["predict", "a.png", "--model", NAME, "--min_score", "0"])
    assert done.exit_code == 0, done.output
    assert json.loads(Path("predictions/detections.json").read_text())
    assert len(server.requests) == 1


@pytest.mark.slow
def test_export_by_name_goes_to_the_current_folder(server: FileServer, tmp_path: Path) -> None:
    """With its pedigree inside, unless the license is to be another."""
    words = ["export", NAME, "--require_license"]
    refused = CliRunner().invoke(app, [*words, "MIT"])
    assert "the license is not among MIT" in str(refused.exception)
    done = CliRunner().invoke(app, [*words, "Apache-2.0", "--allow_difference"])
    assert done.exit_code == 0, (done.output, done.exception)
    assert {path.name for path in Path("export").iterdir()} >= {"detector.onnx"}
    assert bw.load("export/detector.onnx").config.pedigree[0].name == NAME
    kept = {path.name for path in (tmp_path / "cache").iterdir() if not path.name.startswith(".")}
    assert kept == {"digests.json", FILE}


@pytest.mark.slow
def test_fine_tuning_by_name_keeps_the_pedigree(server: FileServer, tmp_path: Path) -> None:
    """Through the run, a resumed run, an export and a run that starts from it."""
    images = [picture(seed) for seed in range(4)]
    boxes = np.array([[10, 10, 60, 60]], np.float32)
    categories = bw.Categories((bw.Category(0, 1, "person"), bw.Category(1, 2, "parcel")))
    data = tmp_path / "data"
    write_coco(data, images, boxes, categories)
    options = {"workers": 0, "device": "cpu", "evaluate": False, "preflight": False}
    changes = ["train_config.num_steps=1", "train_config.batch_size=2", *SMALL]
    written = init_config(data, "first.config", InitSettings(model=NAME, steps=False)).config
    assert f'fine_tune_checkpoint: "{NAME}"' in written.read_text()
    run = bw.train(written, "run", overrides=changes, listeners=[], **options)
    (origin,) = bw.load("run", device="cpu").config.pedigree
    assert (origin.name, origin.license, origin.data) == (NAME, "Apache-2.0", ["COCO 2017"])
    # A configuration that replaces its own says nothing of the weights.
    assert bw.load("run", device="cpu", config=bw.load_config("first.config")).config.pedigree == [origin]
    assert describe_origin(origin).startswith(f"{NAME} of nobody, trained on COCO 2017, license: Apache-2.0, SHA-256 ")
    # The class that COCO has is kept by name, the other starts fresh.
    assert run.step == 1
    bw.train("run/pipeline.config", "run", overrides=["train_config.num_steps=2"], listeners=[], **options)
    resumed = bw.load("run/ckpt-2.pt", device="cpu").config
    assert resumed.pedigree == [origin]
    require_licenses(resumed, ["MIT", "apache-2.0"])
    with pytest.raises(bw.ExportError, match=f"the license is not among MIT: {NAME}"):
        require_licenses(resumed, ["MIT"])
    settings = InitSettings(model="d_fine_n_coco", weights="run", steps=False)
    bw.train(init_config(data, "next.config", settings).config, "next", overrides=changes, listeners=[], **options)
    assert bw.load("next", device="cpu").config.pedigree == [origin]


def test_the_network_is_that_of_the_weights(server: FileServer, tmp_path: Path) -> None:
    """Also where the model has another name, or the weights are left away; what the user asks for comes first."""
    data = tmp_path / "data"
    categories = bw.Categories((bw.Category(0, 1, "person"), bw.Category(1, 2, "parcel")))
    write_coco(data, [picture(seed) for seed in range(4)], np.array([[10, 10, 60, 60]], np.float32), categories)

    def network(**settings: str) -> DFine:
        written = init_config(data, "new.config", InitSettings(steps=False, **settings), force=True)
        config = bw.load_config(written.config)
        assert config.model is not None
        message = config.model.chosen("model")
        assert isinstance(message, DFine)
        return message

    def side(**settings: str) -> int:
        return network(**settings).image_resizer.fixed_shape_resizer.height

    assert side(model="d_fine_n_coco", weights="none") == 640
    assert side(model="d_fine_n_coco", weights=NAME) == side(model=NAME, weights="none") == 128
    assert side(model=NAME, imgsz="160") == 160
    # DEIM's is a preset of its own, whatever weights it starts from; its X that began with Objects365 changes D-FINE's.
    for weights in (NAME, "none"):
        decoder = network(model="deim_d_fine_n_coco", weights=weights).decoder
        assert decoder is not None
        assert decoder.activation.name == "SILU"
    changed = network(model="deim_d_fine_x_obj2coco", weights="none")
    assert changed.decoder is None
    assert changed.loss is not None
    assert changed.loss.classification.name == "MATCHABILITY_AWARE"


def test_an_archive_without_a_preset_is_opened_with_what_is_inside(tmp_path: Path, server: FileServer) -> None:
    files = {
        f"ssd/{file.name}": file.read_bytes() for file in write(WEIGHTS, "bundle", tmp_path / "in").parent.iterdir()
    }
    reader = (
        '{ label_map_path: "PATH_TO_BE_CONFIGURED" tf_record_input_reader { input_path: "PATH_TO_BE_CONFIGURED" } }'
    )
    content = archive({**files, "ssd/pipeline.config": f"{CONFIG} eval_input_reader {reader}".encode()})
    name = "centernet_resnet50_v2_512x512_coco17_tpu-8"
    (tmp_path / "cache").mkdir()
    (tmp_path / "cache" / f"{name}.tar.gz").write_bytes(content)
    model = bw.load(name, device="cpu")
    assert len(model.names) == 80  # of 90 ids
    (origin,) = model.config.pedigree
    assert (origin.name, origin.sha256) == (name, hashlib.sha256(content).hexdigest())
    with pytest.raises(bw.CheckpointError, match=f"{name}: no preset has its network.* is not fine-tuned by name"):
        init_config(tmp_path, "new.config", InitSettings(model=name))
    assert server.requests == []


def write_coco(
    folder: Path,
    images: list[np.ndarray[tuple[int, ...], np.dtype[np.uint8]]],
    box: np.ndarray,
    categories: bw.Categories,
) -> None:
    """Write pictures with an object of each class as a COCO folder."""
    (folder / "train").mkdir(parents=True)
    left, top, right, bottom = (float(side) for side in box[0])
    rows = [
        {
            "id": 2 * number + label,
            "image_id": number,
            "category_id": label + 1,
            "iscrowd": 0,
            "bbox": [left + 8 * label, top, right - left, bottom - top],
            "area": (right - left) * (bottom - top),
        }
        for number in range(len(images))
        for label in range(2)
    ]
    for number, image in enumerate(images):
        Image.fromarray(image).save(folder / "train" / f"{number}.png")
    content = {
        "images": [{"id": n, "file_name": f"{n}.png", "width": 128, "height": 96} for n in range(len(images))],
        "annotations": rows,
        "categories": [{"id": one.id, "name": one.name} for one in categories],
    }
    (folder / "train" / "_annotations.coco.json").write_text(json.dumps(content))
