"""`boxwright demo`: blood cells, detected by the shipped detector; with --train, by one that is trained from scratch."""

from __future__ import annotations

import json
import shlex
import time
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

from boxwright.cli.console import ap_line, console, importing, only_problems, show_progress
from boxwright.cli.process import prepare_inference
from boxwright.data.sample_data import TEST, copy_blood_cells, sample_images

if TYPE_CHECKING:
    from boxwright.evaluation.images import EvaluatedImage
    from boxwright.pipeline.messages import TrainEvalPipelineConfig
    from boxwright.types import Array, Categories, Detections
    from boxwright.weights.open_model import OpenModel

# They are spread evenly over the test pictures, so that the sheet is no choice of the best.
_ON_SHEET, _COLUMNS = 9, 3
_CELL = 560  # pixels, so that captions on the sheet are as large as text on a page
_DRAWN_FROM = 0.5
_MOST_BOXES = 100
_ONNX = ("onnx", "onnxscript", "onnxruntime")


def detect_blood_cells(out: Path) -> Path:
    """Detect blood cells in the test pictures with the shipped detector; write a sheet, an evaluation and a report.

    Returns:
        The report's page.
    """
    began = time.monotonic()
    metrics, pictures = evaluate_shipped(out)
    sheet = _write_sheet(pictures, out / "detections.jpg")
    index = _report(out / "eval", out / "report")
    console.print(f"{ap_line(metrics)} on {len(pictures)} pictures that training did not use")
    console.print(f"pictures with their detections: {sheet}")
    console.print(f"took {time.monotonic() - began:.0f} s")
    return index


def train_on_blood_cells(out: Path, minutes: float) -> Path | None:
    """Train the shipped network on the shipped pictures as a user would: train, evaluate, report, export, compare.

    Returns:
        The report's page; None if the training was interrupted.
    """
    from boxwright.cli.compare import compare_command
    from boxwright.cli.evaluate import evaluate_command
    from boxwright.cli.export import Format, export_command
    from boxwright.cli.train import TfFlags, train_command
    from boxwright.cli.words import FieldOptions
    from boxwright.evaluation.settings import EvaluationSettings, WatchSettings
    from boxwright.exporters.settings import ExportSettings
    from boxwright.report.settings import ReportSettings
    from boxwright.training.settings import RunSettings
    from boxwright.weights.demo_model import SMALL_BACKBONE

    began = time.monotonic()
    data, model_dir = copy_blood_cells(out / "blood_cells"), out / f"model-{minutes:g}-minutes"
    _show("train", data, "--minutes", f"{minutes:g}", "--set", SMALL_BACKBONE, "--model_dir", model_dir)
    words, changes = FieldOptions(minutes=minutes), [SMALL_BACKBONE]
    train_command(words, RunSettings(), TfFlags(), data=str(data), model_dir=str(model_dir), set_=changes)
    if not _is_complete(model_dir):
        return None
    report = out / f"report-{minutes:g}-minutes"
    _show("evaluate", "--model_dir", model_dir, "--report", report, "--quiet")
    with only_problems():  # the training ended with the same metrics
        evaluate_command(EvaluationSettings(), WatchSettings(), ReportSettings(), model_dir, report=report)
    # The package alone does not bring ONNX; PyTorch's own format needs nothing else.
    format = Format.ONNX if all(find_spec(name) for name in _ONNX) else Format.PT2
    _show("export", model_dir, "--format", format.value)
    export_command(ExportSettings(), str(model_dir), format=format)
    if not (out / "eval" / "metrics.json").is_file():
        console.print("\nthe shipped detector on the same pictures:")
        evaluate_shipped(out)
    comparison = out / f"comparison-{minutes:g}-minutes"
    _show("compare", model_dir / "eval", out / "eval", "--out", comparison)
    compare_command(ReportSettings(), model_dir / "eval", out / "eval", comparison)
    _print_summary(out, model_dir, minutes, time.monotonic() - began)
    return report / "index.html"


def _show(*words: object) -> None:
    """Print a command that is run next."""
    console.print(f"\n$ boxwright {shlex.join(map(str, words))}")


def _is_complete(model_dir: Path) -> bool:
    """Return whether a run reached its last step; what resumes an interrupted one was printed when it ended."""
    from boxwright.pipeline.load import load_config

    train = load_config(model_dir / "pipeline.config").train_config
    return train is not None and (model_dir / f"ckpt-{train.num_steps}.pt").is_file()


def evaluate_shipped(out: Path) -> tuple[dict[str, float], dict[str, Detections[Array]]]:
    """Evaluate the shipped detector on the test pictures into the folder `eval`, with the data beside it.

    Returns:
        The metrics, and the detections in each picture by its file's name.
    """
    with importing():
        from boxwright.base.files import write_whole
        from boxwright.config.load import dump_message
        from boxwright.evaluation.evaluate import evaluate, open_evaluation
        from boxwright.evaluation.settings import EvaluationSettings
        from boxwright.evaluation.write import ImageResults, about_evaluation, write_evaluation
        from boxwright.weights.demo_model import DEMO_MODEL
        from boxwright.weights.open_model import open_model

    prepare_inference()
    data = copy_blood_cells(out / "blood_cells")
    model, settings = open_model(DEMO_MODEL), EvaluationSettings(workers=0)
    config = _with_test_pictures(model, data)
    opened, folder = open_evaluation(model, config, settings), out / "eval"
    pictures: dict[str, Detections[Array]] = {}
    with ImageResults(folder) as results:

        def keep(image: EvaluatedImage, categories: Categories) -> None:
            pictures[image.sample.filename] = image.detections
            results.add(image, categories)

        evaluation = evaluate(opened, show_progress, keep)
        write_evaluation(evaluation, results, folder, model.step, about=about_evaluation(model, settings, None))
    write_whole(folder / "pipeline.config", dump_message(config))
    return evaluation.metrics, pictures


def _with_test_pictures(model: OpenModel, data: Path) -> TrainEvalPipelineConfig:
    """Return the shipped detector's configuration with the copied test pictures as its evaluation data."""
    from boxwright.data.sources import Source
    from boxwright.pipeline.input_reader import build_input_reader

    reader = build_input_reader(Source("coco", str(data / f"{TEST}.json"), image_folder=str(data / TEST)))
    reader.label_map_path = str(model.path / "label_map.pbtxt")
    model.config.eval_input_reader = [reader]
    return model.config


def _write_sheet(pictures: dict[str, Detections[Array]], path: Path) -> Path:
    """Write the detections in some pictures, evenly spread over all of them, side by side."""
    from boxwright.base.drawing import Captions, contact_sheet
    from boxwright.base.files import write_whole
    from boxwright.data.image_io import encode_jpeg, read_image
    from boxwright.evaluation.pictures import draw_detections

    files = sample_images()
    shown = files[:: max(len(files) // _ON_SHEET, 1)][:_ON_SHEET]
    drawn = [
        draw_detections(read_image(file), pictures[file.name], _DRAWN_FROM, _MOST_BOXES, Captions(scores=False))
        for file in shown
    ]
    sheet = contact_sheet(drawn, [file.name for file in shown], columns=_COLUMNS, cell=_CELL)
    return write_whole(path, encode_jpeg(sheet))


def _report(evaluation: Path, folder: Path) -> Path:
    """Write the report of an evaluation, and return its page."""
    from boxwright.report.sources import source_of_evaluation
    from boxwright.report.write import write_report

    return write_report(source_of_evaluation(evaluation), folder, progress=show_progress)


def _print_summary(out: Path, model_dir: Path, minutes: float, seconds: float) -> None:
    """Print what the trained detector reached beside the shipped one."""
    shipped, trained = (json.loads((folder / "eval" / "metrics.json").read_text()) for folder in (out, model_dir))
    after = f"after {minutes:g} minute{'' if minutes == 1 else 's'} of training from scratch"
    console.print(f"\n{after}: {ap_line(trained)}")
    console.print(f"the shipped detector, after longer training on the same pictures: {ap_line(shipped)}")
    console.print(f"took {seconds:.0f} s")
