"""MLflow's model flavor with MLflow itself, whose store is a folder."""

from __future__ import annotations

import base64
import importlib
import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

import boxwright as bw
from tests.api.models import SmallRun


@pytest.fixture(scope="module")
def mlflow() -> Any:
    """MLflow, imported no sooner than a test needs it: it takes two seconds, of each process that collects."""
    pytest.importorskip("pandas")
    return pytest.importorskip("mlflow", reason="mlflow is not installed: pip install 'boxwright[mlflow]'")


@pytest.fixture(scope="module")
def mlflow_model(mlflow: Any) -> Any:
    return importlib.import_module("boxwright.api.mlflow_model")


@pytest.fixture
def store(mlflow: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    # MLflow takes a folder as its store only when asked to.
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    monkeypatch.chdir(tmp_path)
    before = mlflow.get_tracking_uri(), mlflow.get_registry_uri()
    mlflow.set_tracking_uri((tmp_path / "store").as_uri())
    mlflow.set_registry_uri((tmp_path / "store").as_uri())
    yield tmp_path / "store"
    mlflow.set_tracking_uri(before[0])
    mlflow.set_registry_uri(before[1])


def table(*contents: object) -> Any:
    import pandas as pd

    return pd.DataFrame({"image": list(contents)})


def blank(path: Path) -> bytes:
    Image.new("RGB", (96, 96)).save(path)
    return path.read_bytes()


@pytest.mark.parametrize("kind", [pytest.param("run", marks=pytest.mark.slow), "onnx"])
def test_a_saved_model_finds_what_the_detector_finds(
    kind: str, run: SmallRun, tmp_path: Path, mlflow: Any, mlflow_model: Any
) -> None:
    source = run.folder if kind == "run" else run.onnx
    mlflow_model.save_model(source, tmp_path / "saved")
    expected = bw.load(source, device="cpu", runtime="auto" if kind == "onnx" else "torch")(run.picture, min_score=0.3)
    opened = mlflow_model.load_model(tmp_path / "saved", device="cpu")
    found = opened(run.picture, min_score=0.3)
    assert set(expected.names()) <= set(opened.names)
    np.testing.assert_array_equal(found.boxes, expected.boxes)
    # Through MLflow, which checks types, for several images at once.
    served = mlflow.pyfunc.load_model(
        str(tmp_path / "saved"), model_config={"device": "cpu"} if kind == "run" else None
    )
    picture, empty = run.picture.read_bytes(), blank(tmp_path / "blank.png")
    rows = served.predict(table(empty, picture, picture), params={"min_score": 0.3})
    assert [*rows.columns] == ["image", "x_min", "y_min", "x_max", "y_max", "score", "label", "name"]
    for number in (1, 2):
        mine = rows[rows["image"] == number]
        np.testing.assert_allclose(mine[["x_min", "y_min", "x_max", "y_max"]], expected.boxes, atol=1e-3)
        np.testing.assert_allclose(mine["score"], expected.scores, atol=1e-5)
        assert mine["name"].tolist() == expected.names()
    assert len(served.predict(table(empty), params={"min_score": 0.99})) == 0
    assert len(served.predict(table(picture))) == sum(expected.scores >= 0.5)


def test_a_folder_of_mlflows_holds_no_code(run: SmallRun, tmp_path: Path, mlflow_model: Any) -> None:
    mlflow_model.save_model(run.folder, tmp_path / "saved", pip_requirements=["boxwright==0.1.0"])
    files = {path.relative_to(tmp_path / "saved").as_posix() for path in tmp_path.glob("saved/**/*") if path.is_file()}
    weights = {f"model/{name}" for name in ("model.safetensors", "pipeline.config", "label_map.pbtxt", "config.json")}
    assert files == {"MLmodel", "conda.yaml", "python_env.yaml", "requirements.txt", *weights}
    assert (tmp_path / "saved" / "requirements.txt").read_text() == "boxwright==0.1.0\n"
    assert [path.name for path in tmp_path.iterdir()] == ["saved"]
    mlflow_model.save_model(run.onnx, tmp_path / "exported")
    assert "boxwright[onnx]" in (tmp_path / "exported" / "requirements.txt").read_text()
    assert [path.name for path in (tmp_path / "exported" / "model").iterdir()] == ["detector.onnx"]


def test_a_logged_model(run: SmallRun, store: Path, mlflow: Any, mlflow_model: Any) -> None:
    with mlflow.start_run() as begun:
        info = mlflow_model.log_model(run.folder, "shapes", metadata={"data": "shapes"})
    assert mlflow_model.load_model(info.model_uri, device="cpu").step == bw.Run(run.folder).step
    rows = mlflow.pyfunc.load_model(info.model_uri).predict(table(run.picture.read_bytes()))
    assert len(rows) > 0
    assert info.run_id == begun.info.run_id
    assert info.metadata == {"data": "shapes"}
    assert sorted(info.flavors) == ["boxwright", "python_function"]
    assert json.loads(info.signature.to_dict()["params"])[0]["name"] == "min_score"


def test_a_registered_model(run: SmallRun, store: Path, mlflow: Any, mlflow_model: Any) -> None:
    with mlflow.start_run():
        mlflow_model.log_model(run.onnx, registered_model_name="shapes")
    assert mlflow_model.load_model("models:/shapes/1").is_exported


def test_what_a_server_takes(run: SmallRun, tmp_path: Path, mlflow: Any, mlflow_model: Any) -> None:
    """As MLflow's server reads a request, without its process."""
    from mlflow.pyfunc.scoring_server import infer_and_parse_data

    mlflow_model.save_model(run.onnx, tmp_path / "saved")
    served = mlflow.pyfunc.load_model(str(tmp_path / "saved"))
    encoded = base64.b64encode(run.picture.read_bytes()).decode()
    given = {"dataframe_split": {"columns": ["image"], "data": [[encoded]]}}
    rows = served.predict(infer_and_parse_data(given, served.metadata.get_input_schema()))
    assert len(rows) == len(bw.load(run.onnx)(run.picture, min_score=0.5))


def test_what_is_no_model(run: SmallRun, tmp_path: Path, mlflow: Any, mlflow_model: Any) -> None:
    (tmp_path / "there").mkdir()
    with pytest.raises(bw.OutputError, match="there exists already; name a new folder"):
        mlflow_model.save_model(run.folder, tmp_path / "there")
    with pytest.raises(bw.CheckpointError, match="nothing: no such folder or checkpoint"):
        mlflow_model.save_model(tmp_path / "nothing", tmp_path / "saved")
    shutil.copy(run.onnx, tmp_path / "cut.onnx")
    (tmp_path / "cut.onnx").write_bytes(run.onnx.read_bytes()[:-100])
    with pytest.raises(bw.ExportError, match=r"cut\.onnx"):
        mlflow_model.save_model(tmp_path / "cut.onnx", tmp_path / "saved")
    assert not (tmp_path / "saved").exists()
    mlflow.models.Model(flavors={"other": {}}).save(str(tmp_path / "there" / "MLmodel"))
    with pytest.raises(bw.CheckpointError, match="there: not a model of Boxwright; it has other"):
        mlflow_model.load_model(tmp_path / "there")


def test_images_that_are_none(run: SmallRun, tmp_path: Path, mlflow: Any, mlflow_model: Any) -> None:
    mlflow_model.save_model(run.onnx, tmp_path / "saved")
    served = mlflow.pyfunc.load_model(str(tmp_path / "saved"))
    with pytest.raises(bw.DataError, match="image 1: "):
        served.predict(table(run.picture.read_bytes(), b"no image"))
    with pytest.raises(mlflow.MlflowException, match="schema"):
        served.predict(table("photo.jpg").rename(columns={"image": "picture"}))
    inner = mlflow_model._load_pyfunc(str(run.onnx))
    with pytest.raises(bw.DataError, match="row 0: image: expected the bytes of an image file, found str"):
        inner.predict(table("photo.jpg"))
    with pytest.raises(bw.DataError, match="expected a DataFrame with a column 'image'"):
        inner.predict([b"x"])
    assert len(inner.predict(table())) == 0
