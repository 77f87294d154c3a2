"""The precision of a run: a GPU's default for presets, what the user says, and what a run began with."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

import boxwright as bw
from boxwright.config.load import dump_message, parse_message
from boxwright.config.preset import preset_names
from boxwright.families.table import find_family
from boxwright.pipeline import messages as m
from boxwright.pipeline.precision import (
    choose_precision,
    keep_precision,
    precision_of,
    precision_overrides,
    with_precision,
)
from tests.conftest import FEWER_LAYERS

GPU, CPU = torch.device("cuda", 0), torch.device("cpu")
PRESET = "ssd_hgnetv2_fpn_small"  # of which `boxwright init` writes a change
RESULTS = Path(__file__).parents[2] / "benchmarks" / "results" / "precision-cpu.json"


@pytest.fixture
def ampere(monkeypatch: pytest.MonkeyPatch) -> None:
    """As on a GPU of the first generation that has bfloat16."""
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (8, 0))


@pytest.fixture
def turing(monkeypatch: pytest.MonkeyPatch) -> None:
    """As on a GPU of the last generation without."""
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (7, 5))


def written(tmp_path: Path, text: str) -> bw.Pipeline:
    path = tmp_path / "pipeline.config"
    path.write_text(text)
    return bw.load_config(path)


def chosen(config: bw.Pipeline, device: torch.device = GPU) -> str:
    config, _ = choose_precision(config, device)
    assert config.train_config is not None
    return precision_of(config.train_config)


@pytest.mark.usefixtures("ampere")
def test_a_preset_trains_in_bfloat16_on_a_gpu(tmp_path: Path) -> None:
    config = bw.load_config(f"preset:{PRESET}")
    changed, line = choose_precision(config, GPU)
    assert changed.train_config is not None
    assert changed.train_config.use_bfloat16
    assert "bfloat16" in line
    assert "--precision float32" in line
    assert config.train_config is not None
    assert not config.train_config.use_bfloat16, "the caller's configuration changed"
    assert chosen(written(tmp_path, f'preset: "{PRESET}" model {{ ssd {{ num_classes: 3 }} }}')) == "bfloat16"
    # An entry that turns another preset's off for TensorFlow's sake says nothing about GPUs.
    assert chosen(bw.load_config("preset:ssd_mobilenet_v1_fpn_640")) == "bfloat16"


@pytest.mark.usefixtures("ampere")
@pytest.mark.parametrize("field", ["use_bfloat16: false", "use_float16: true", "use_bfloat16: true"])
def test_what_the_user_says_stays(tmp_path: Path, field: str) -> None:
    config = written(tmp_path, f'preset: "{PRESET}" train_config {{ {field} }}')
    changed, line = choose_precision(config, GPU)
    assert changed is config
    assert not line
    name, _, value = field.partition(": ")
    config = bw.load_config(f"preset:{PRESET}", [f"train_config.{name}={value}"])
    assert choose_precision(config, GPU) == (config, "")


@pytest.mark.usefixtures("ampere")
def test_a_configuration_of_the_users_stays(tmp_path: Path) -> None:
    config = written(tmp_path, FEWER_LAYERS + "train_config { batch_size: 2 }")
    changed, line = choose_precision(config, GPU)
    assert changed is config
    assert "float32" in line
    # Another family than the preset's is a model of the user's own.
    model = FEWER_LAYERS[FEWER_LAYERS.index("model") :]
    assert chosen(written(tmp_path, f'preset: "d_fine_n_coco" {model}')) == "bfloat16"  # the preset says so itself
    assert chosen(written(tmp_path, f'preset: "refinedet_mobilenet_v2_shapes" {model}')) == "float32"


@pytest.mark.usefixtures("turing")
@pytest.mark.parametrize("preset", [PRESET, "d_fine_n_coco"])
def test_a_gpu_without_bfloat16_computes_in_float32(preset: str) -> None:
    changed, line = choose_precision(bw.load_config(f"preset:{preset}"), GPU)
    assert changed.train_config is not None
    assert precision_of(changed.train_config) == "float32"
    assert "no bfloat16" in line


def test_presets_train_in_float32_on_a_cpu() -> None:
    config = bw.load_config(f"preset:{PRESET}")
    assert choose_precision(config, CPU) == (config, "")
    changed, line = choose_precision(bw.load_config("preset:d_fine_n_coco"), CPU)
    assert changed.train_config is not None
    assert precision_of(changed.train_config) == "float32"
    assert "float32" in line


def test_what_the_user_says_stays_on_a_cpu(tmp_path: Path) -> None:
    """A line says what it costs; of configurations for TPUs, too."""
    for config in (
        written(tmp_path, FEWER_LAYERS + "train_config { use_bfloat16: true }"),
        bw.load_config("preset:d_fine_n_coco", precision_overrides("bfloat16")),
    ):
        changed, line = choose_precision(config, CPU)
        assert changed is config
        assert "--precision float32" in line


@pytest.mark.usefixtures("ampere")
def test_presets_of_families_that_were_not_measured_stay() -> None:
    """By the table of families alone: a preset is of its family."""
    for name in preset_names():
        config = bw.load_config(f"preset:{name}")
        assert config.model is not None
        assert config.train_config is not None
        learns = find_family(config.model).learns_in_bfloat16 or config.train_config.use_bfloat16
        assert chosen(config) == ("bfloat16" if learns else "float32"), name


def test_families_are_those_that_were_measured() -> None:
    """A family that learns in bfloat16 has several seeds of each network, all of which agree with float32's."""
    rows = json.loads(RESULTS.read_text())["rows"]
    finals: dict[tuple[str, str], dict[str, list[float]]] = {}
    for row in rows:
        by_precision = finals.setdefault((row["family"], row["contender"]), {"float32": [], "bfloat16": []})
        by_precision[row["precision"]].append(row["final loss"])
    agreeing: dict[str, bool] = {}
    for (family, _), found in finals.items():
        whole, half = (torch.tensor(found[name], dtype=torch.float64) for name in ("float32", "bfloat16"))
        equal = len(whole) == len(half) >= 3 and bool((half.mean() - whole.mean()).abs() <= whole.std())
        agreeing[family] = agreeing.get(family, True) and equal
    members = {name: field.type for name, field in m.DetectionModel.fields.items() if name != "experimental_model"}
    learning = [
        name for name, kind in members.items() if find_family(m.DetectionModel(**{name: kind()})).learns_in_bfloat16
    ]
    assert learning
    for name in learning:
        assert agreeing.get(name), name


@pytest.mark.parametrize("precision", ["float32", "bfloat16", "float16"])
def test_a_precision_by_name(precision: str) -> None:
    config = bw.load_config("preset:d_fine_n_coco")
    for changed in (
        with_precision(config, precision),
        bw.load_config("preset:d_fine_n_coco", precision_overrides(precision)),
    ):
        assert changed.train_config is not None
        assert precision_of(changed.train_config) == precision
    assert with_precision(config, "") == config


def test_a_resumed_run_keeps_its_precision() -> None:
    preset = bw.load_config(f"preset:{PRESET}")
    # As a checkpoint holds it, without the preset.
    begun = parse_message(dump_message(with_precision(preset, "bfloat16")), bw.Pipeline)
    kept = keep_precision(preset, begun)
    assert kept.train_config is not None
    assert precision_of(kept.train_config) == "bfloat16"
    assert keep_precision(preset, preset) is preset
    asked = with_precision(preset, "float32")
    assert keep_precision(asked, begun) is asked
