"""`boxwright ui`."""

from __future__ import annotations

import os
import shlex
import webbrowser
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated

import typer

from boxwright.base.errors import BoxwrightError, ConfigError, first_line
from boxwright.cli.console import console
from boxwright.cli.options import source_path
from boxwright.cli.serving import Access, name_models, run_server
from boxwright.inference.serving.settings import SamplePicture, ServerSettings
from boxwright.runtime.formats import EXPORTS

# How deep below the current folder runs are looked for, and in how many folders.
_DEPTH, _MOST_FOLDERS = 3, 2000
_MOST_LISTED = 10
_SAMPLES, _COLORS = 8, 3


def ui_command(
    models: Annotated[
        list[Path] | None,
        typer.Argument(
            parser=source_path,
            metavar="RUN",
            help="Runs, checkpoints or exported detectors; two are compared side by side. Default: the one in this folder, "
            "or a list to choose from.",
        ),
    ] = None,
    device: Annotated[str, typer.Option("--device", help="As for `boxwright serve`.")] = "cpu",
    port: Annotated[int, typer.Option("--port", help="The port; 0 for any free one.", min=0, max=65535)] = 0,
    *,
    allow_edited: Annotated[
        bool, typer.Option("--allow_edited", help="Open an exported file that was modified.")
    ] = False,
    no_browser: Annotated[
        bool, typer.Option("--no_browser", help="Print the address without opening a browser.")
    ] = False,
) -> None:
    """Open a page in the browser on which detectors are tried: on pictures, video and a webcam, one or two at a time.

    Only this machine can reach it; `boxwright serve` has the options of a server.
    """
    chosen = list(models or [_only_model(Path())])
    settings = ServerSettings(port=port, device=device, allow_edited=allow_edited)
    samples = _sample_pictures(chosen[0], allow_edited=allow_edited)

    def announce(where: str) -> None:
        console.print(f"{' and '.join(map(str, chosen))}: {where}/ (Ctrl+C to stop)")
        if not no_browser and not webbrowser.open(f"{where}/"):
            console.print("no browser could be opened; open the address yourself")

    served = dict(zip(name_models(chosen), chosen, strict=True))
    run_server(served, settings, Access(), samples=samples, announce=announce)


def _sample_pictures(model: Path, *, allow_edited: bool) -> list[SamplePicture]:
    """Return pictures of a model's evaluation data, evenly chosen; none if the data are not on this machine.

    Those of `boxwright serve` are for others to reach, who are not to see the data.
    """
    from boxwright.data.image_io import encode_jpeg
    from boxwright.pipeline.input_reader import build_dataset
    from boxwright.weights.find_weights import exists
    from boxwright.weights.open_model import load_configuration

    samples: list[SamplePicture] = []
    if not exists(model):  # the server says so
        return samples
    try:
        config = load_configuration(model, None, [], allow_edited=allow_edited).message
        if not config.eval_input_reader:
            return samples
        data = build_dataset(config.eval_input_reader[0], "eval_input_reader")
        for index in range(0, len(data), max(len(data) // _SAMPLES, 1))[:_SAMPLES]:
            sample = data[index]
            if sample.image.shape[2] == _COLORS:  # a browser shows no others
                name = Path(sample.filename or sample.id or f"picture-{index}").name
                samples.append(SamplePicture(name, encode_jpeg(sample.image)))
    except (BoxwrightError, OSError) as error:
        console.print(f"no sample pictures of the evaluation data: {first_line(error)}")
    return samples


def _only_model(folder: Path) -> Path:
    """Return the run or exported detector in a folder.

    Raises:
        ConfigError: If there is none; or several, which are printed, newest first.
    """
    models = sorted(_models_in(folder), key=lambda path: path.stat().st_mtime, reverse=True)
    if not models:
        raise ConfigError("no run and no exported detector is in this folder; name one, or make one: boxwright demo")
    if len(models) == 1:
        return models[0]
    for path in models[:_MOST_LISTED]:
        console.print(f"boxwright ui {shlex.quote(str(path))}")
    more = f" ({len(models)} in all)" if len(models) > _MOST_LISTED else ""
    raise ConfigError(f"several detectors are in this folder{more}: name one, or two to compare them")


def _models_in(folder: Path) -> Iterator[Path]:
    """Yield runs, and exported detectors that are not in a run's folder."""
    for number, (where, folders, files) in enumerate(os.walk(folder)):
        if number >= _MOST_FOLDERS:
            return
        here = Path(where)
        folders[:] = [name for name in sorted(folders) if not name.startswith(".")]
        if len(here.relative_to(folder).parts) >= _DEPTH:
            folders.clear()
        if "pipeline.config" in files and any(name.startswith("ckpt-") and name.endswith(".pt") for name in files):
            folders.clear()
            yield here
            continue
        yield from (here / name for name in sorted(files) if _is_export(here / name, files))


def _is_export(path: Path, beside: list[str]) -> bool:
    """Return whether a file is an exported detector by its name: OpenVINO's .xml needs its .bin (data sets have .xml)."""
    suffix = path.suffix.lower()
    return suffix in EXPORTS and (suffix != ".xml" or f"{path.stem}.bin" in beside)
