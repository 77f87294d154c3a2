"""MLflow's model flavor: detectors as models of MLflow, which serves, registers and loads them.

The model is a folder of weights, or an exported file; no code and no pickle is stored.
"""

from __future__ import annotations

import sys
import tempfile
import warnings
from collections.abc import Iterator, Mapping, Sequence
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any

import mlflow
import pandas as pd
import yaml
from mlflow.models import Model as MlflowModel
from mlflow.models import ModelSignature
from mlflow.types import ColSpec, DataType, ParamSchema, ParamSpec, Schema

from boxwright.api.model import Model, load
from boxwright.base.errors import CheckpointError, DataError, OutputError
from boxwright.base.files import cause, is_folder, make_folder, read_file, shown, write_whole
from boxwright.runtime.export_file import export_paths
from boxwright.runtime.formats import is_export
from boxwright.weights.find_weights import local_path

with warnings.catch_warnings():
    # As it is imported, MLflow warns of type hints of its own.
    warnings.filterwarnings("ignore", message=".*Any type hint")
    import mlflow.pyfunc

if TYPE_CHECKING:
    from boxwright.base.settings import AnyDevice

FLAVOR = "boxwright"
_DATA, _IMAGE = "model", "image"
# The extra that runs an exported file.
_EXTRAS = {".onnx": "onnx", ".xml": "openvino", ".tflite": "litert"}
_COLUMNS = {
    _IMAGE: DataType.long,
    **dict.fromkeys(("x_min", "y_min", "x_max", "y_max", "score"), DataType.float),
    "label": DataType.long,
    "name": DataType.string,
}
_LEAST_SCORE = 0.5


def save_model(
    model: str | Path,
    path: str | Path,
    *,
    mlflow_model: MlflowModel | None = None,
    pip_requirements: Sequence[str] | None = None,
) -> None:
    """Write a detector as a folder of MLflow's.

    Args:
        model: A run's folder (its newest checkpoint), a checkpoint or an exported file, as for `boxwright.load`.
        path: The folder, which must not exist.
        mlflow_model: What MLflow knows of the model already; `log_model` passes it.
        pip_requirements: What an environment needs to load it; by default this Boxwright, with the exported file's
            runtime, and this MLflow.

    Raises:
        BoxwrightError: If there is no such model, the folder exists, or it cannot be written.
    """
    source, path = local_path(model), Path(path)
    if path.exists():
        raise OutputError(f"{shown(path)} exists already; name a new folder")
    files = _files(source)
    described = MlflowModel() if mlflow_model is None else mlflow_model
    described.signature = _signature()
    name = next(iter(files)) if is_export(source) else ""
    data = f"{_DATA}/{name}".rstrip("/")
    described.add_flavor(FLAVOR, data=data, boxwright_version=version("boxwright"))
    environments = {"conda_env": "conda.yaml", "python_env": "python_env.yaml"}
    mlflow.pyfunc.add_to_model(described, loader_module=__name__, data=data, **environments)
    with tempfile.TemporaryDirectory(dir=make_folder(path.parent), prefix=f".{path.name}.") as scratch:
        made = make_folder(Path(scratch) / path.name)
        for file, content in files.items():
            write_whole(make_folder(made / _DATA) / file, content)
        for file, text in _environment(pip_requirements or _requirements(source)).items():
            write_whole(made / file, text)
        described.save(str(made / "MLmodel"))
        try:
            made.rename(path)
        except OSError as error:
            raise OutputError(f"{shown(path)}: could not be written: {cause(error)}") from None


def log_model(
    model: str | Path,
    name: str = "model",
    *,
    registered_model_name: str | None = None,
    pip_requirements: Sequence[str] | None = None,
    **settings: Any,
) -> Any:
    """Log a detector as a model of the active run, or of a new one.

    Args:
        model: As for `save_model`.
        name: The model's name in MLflow.
        registered_model_name: The name to register it by, as a new version.
        pip_requirements: As for `save_model`.
        **settings: Further arguments of `mlflow.models.Model.log`, such as metadata, step and tags.

    Returns:
        MLflow's ModelInfo, whose `model_uri` opens it.
    """
    return MlflowModel.log(
        artifact_path=None,
        name=name,
        flavor=sys.modules[__name__],
        registered_model_name=registered_model_name,
        model=model,
        pip_requirements=pip_requirements,
        **settings,
    )


def load_model(model_uri: str | Path, *, device: AnyDevice = "auto") -> Model:
    """Open a detector that `save_model` or `log_model` wrote, as `boxwright.load` does.

    Args:
        model_uri: A folder, or an address of MLflow such as models:/NAME/1 or runs:/ID/model.
        device: As for `boxwright.load`.

    Returns:
        The model.

    Raises:
        CheckpointError: If it is not a model of this flavor.
    """
    folder = Path(model_uri) if is_folder(model_uri) else Path(mlflow.artifacts.download_artifacts(str(model_uri)))
    flavors = MlflowModel.load(str(folder)).flavors
    if FLAVOR not in flavors:
        raise CheckpointError(f"{shown(str(model_uri))}: not a model of Boxwright; it has {', '.join(sorted(flavors))}")
    return load(folder / flavors[FLAVOR]["data"], device=device)


def _load_pyfunc(path: str, model_config: Mapping[str, Any] | None = None) -> _Detector:
    """Return what `mlflow.pyfunc.load_model` wraps; MLflow calls this by its name."""
    return _Detector(load(path, device=str((model_config or {}).get("device", "auto"))))


class _Detector:
    """Detects in a table of images, as MLflow's servers call it."""

    def __init__(self, model: Model) -> None:
        self.model = model

    def predict(self, table: Any, params: Mapping[str, Any] | None = None) -> pd.DataFrame:
        """Detect in all images of a table.

        Args:
            table: A DataFrame whose column `image` has the bytes of image files.
            params: `min_score`, the confidence threshold.

        Returns:
            A row for each object; `image` is the row of the table that it is in.

        Raises:
            DataError: For another table, or an image that cannot be read.
        """
        least = float((params or {}).get("min_score", _LEAST_SCORE))
        frames = []
        for result in self.model.stream(_pictures(table), min_score=least):
            if result.error:
                raise DataError(result.error)
            frames.append(result.to_pandas())
        for number, objects in enumerate(frames):
            objects.insert(0, _IMAGE, number)
        if not frames:
            return pd.DataFrame(columns=[*_COLUMNS])
        # pandas warns of tables without rows among others; alone, one has the columns' types.
        return pd.concat([objects for objects in frames if len(objects)] or frames[:1], ignore_index=True)


def _pictures(table: Any) -> Iterator[Any]:
    if not isinstance(table, pd.DataFrame) or _IMAGE not in table.columns:
        raise DataError(f"expected a DataFrame with a column {_IMAGE!r} of the bytes of image files")
    for number, content in enumerate(table[_IMAGE]):
        if not isinstance(content, bytes | bytearray):
            kind = type(content).__name__
            raise DataError(f"row {number}: {_IMAGE}: expected the bytes of an image file, found {kind}")
        yield bytes(content)


def _files(source: Path) -> dict[str, bytes]:
    """Return the files that a model consists of, the one to open first."""
    if is_export(source):
        load(source)  # a damaged file, or one of another program, is refused here
        return {path.name: read_file(path, CheckpointError) for path in export_paths(source)}
    from boxwright.weights.export_weights import pack_weights_folder
    from boxwright.weights.restore import restore_detector

    return pack_weights_folder(*restore_detector(source))


def _signature() -> ModelSignature:
    return ModelSignature(
        Schema([ColSpec(DataType.binary, _IMAGE)]),
        Schema([ColSpec(kind, name) for name, kind in _COLUMNS.items()]),
        ParamSchema([ParamSpec("min_score", DataType.double, _LEAST_SCORE)]),
    )


def _requirements(source: Path) -> list[str]:
    public, _, local = version("boxwright").partition("+")
    extra = f"[{_EXTRAS[source.suffix.lower()]}]" if source.suffix.lower() in _EXTRAS else ""
    # A version between two releases is in no registry.
    exact = "" if local or ".dev" in public else f"=={public}"
    return [f"mlflow=={mlflow.__version__}", f"boxwright{extra}{exact}", "pandas"]


def _environment(requirements: Sequence[str]) -> dict[str, str]:
    python = ".".join(map(str, sys.version_info[:3]))
    listed = ["-r requirements.txt"]
    conda = {"name": "mlflow-env", "channels": ["conda-forge"]}
    return {
        "requirements.txt": "\n".join(requirements) + "\n",
        "python_env.yaml": yaml.safe_dump({"python": python, "build_dependencies": ["pip"], "dependencies": listed}),
        "conda.yaml": yaml.safe_dump(
            {**conda, "dependencies": [f"python={python}", "pip", {"pip": list(requirements)}]}
        ),
    }
