"""Models at addresses (s3://, gs://): fetched into the cache, all files of one or none, and used from there.

Of a run, that is its newest checkpoint and what stands beside it, without what was logged and evaluated; of an export
or another file, that and what it needs beside it; of any other folder with a model, all of it. A folder of the cache
belongs to one state of its files: a run that went on is fetched anew.
"""

from __future__ import annotations

import hashlib
import logging
from pathlib import Path, PurePosixPath

from boxwright.base.errors import CheckpointError, DataError, shortened
from boxwright.base.files import cache_folder, make_folder
from boxwright.base.outputs import is_output_address, require_output_address
from boxwright.base.remote import RemoteFile, download_remote, folder_of, list_remote
from boxwright.base.text import counted, without_secrets
from boxwright.data.archives import fill_folder
from boxwright.runtime.formats import CHECKPOINT_NAME, EXPORTS

_LOG = logging.getLogger("boxwright")
# A run may remove a checkpoint while it is fetched.
_TRIES = 3
_CONFIGURATION = "pipeline.config"
_EVENTS = "events.out.tfevents"
# What the file of a model may end with, also of TensorFlow's.
_MODELS = (*EXPORTS, ".pt", ".pth", ".safetensors", ".index", ".pb", ".ckpt", ".bin")


def models_cache() -> Path:
    """Return the folder of fetched models, which may not exist yet."""
    return cache_folder() / "models"


def model_address(source: str | Path) -> str | None:
    """Return the address that a source of weights is; None for a path, and for other addresses.

    Raises:
        ConfigError: If it is a whole bucket.
    """
    return require_output_address(source, "model") if isinstance(source, str) and is_output_address(source) else None


def fetch_remote_model(address: str) -> Path:
    """Return the path of a model in the cache, after fetching what is not there.

    Args:
        address: Of a run's folder, a checkpoint, an exported file, or whatever else can be opened.

    Raises:
        CheckpointError: If nothing is there, or it does not arrive, also after further tries.
        OutputError: If the cache cannot be written.
    """
    try:
        for _ in range(_TRIES - 1):
            files = _files_of_model(address)
            try:
                return _fetch(address, files)
            except DataError:
                if _files_of_model(address) == files:
                    raise
        return _fetch(address, _files_of_model(address))
    except DataError as error:
        raise CheckpointError(str(error)) from None


def _files_of_model(address: str) -> dict[str, RemoteFile]:
    """Return the files that a model consists of, by their names from its folder on.

    Raises:
        DataError: If nothing is there, or as `list_remote`.
    """
    below = {name: file for name, file in list_remote(address).items() if name}
    if found := _files_of_run(below):
        return found
    if below:
        if not any(name.lower().endswith(_MODELS) for name in below):
            raise DataError(f"{_shown(address)}: {counted(len(below), 'file')}, and no model among them")
        return below
    name = _name(address)
    beside = list_remote(folder_of(address))
    # TensorFlow's checkpoints have several files of one name; OpenVINO's weights are beside its graph.
    wanted = {name, _CONFIGURATION, f"{PurePosixPath(name).stem}.bin"}
    found = {other: beside[other] for other in beside if other in wanted or other.startswith(f"{name}.")}
    if not any(other == name or other.startswith(f"{name}.") for other in found):
        raise DataError(f"{_shown(address)}: no such run, checkpoint or exported file")
    return found


def _files_of_run(files: dict[str, RemoteFile]) -> dict[str, RemoteFile]:
    """Return the files that a run needs; none if there is no checkpoint of ours."""
    steps = {name: int(match[1]) for name in files if (match := CHECKPOINT_NAME.fullmatch(name))}
    if not steps:
        return {}
    newest = max(steps, key=lambda name: steps[name])
    return {
        name: file
        for name, file in files.items()
        if name == newest or not ("/" in name or name.endswith(".pt") or name.startswith((".", _EVENTS)))
    }


def _fetch(address: str, files: dict[str, RemoteFile]) -> Path:
    state = "\0".join(f"{name}\0{files[name].digest}" for name in sorted(files))
    digest = hashlib.sha256(f"{address}\0{state}".encode()).hexdigest()[:32]
    name = _name(address)
    is_folder = not any(other == name or other.startswith(f"{name}.") for other in files)
    folder = models_cache() / digest / (name if is_folder else "files")

    def fill(into: Path) -> None:
        size = sum(file.size for file in files.values())
        count = counted(len(files), "file")
        _LOG.info("%s: %s of %.1f MB in all: fetched to %s", _shown(address), count, size / 1e6, folder)
        for each, file in files.items():
            path = into.joinpath(*_parts(each))
            make_folder(path.parent)
            download_remote(file, path)

    fill_folder(folder, fill)
    return folder if is_folder else folder / name


def _parts(name: str) -> tuple[str, ...]:
    """Return the folders and the name of a file of a model; a DataError for a name that leads out of its folder."""
    parts = PurePosixPath(name).parts
    if ".." in parts or name.startswith("/") or "\\" in name:
        raise DataError(f"{shortened(name, 100)!r}: not the name of a model's file")
    return parts


def _name(address: str) -> str:
    return address.rsplit("/", 1)[-1]


def _shown(address: str) -> str:
    return shortened(without_secrets(address), 400)
