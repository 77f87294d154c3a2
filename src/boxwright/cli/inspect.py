"""`boxwright inspect`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from boxwright.base.errors import DataError
from boxwright.base.paths import refuse_foreign_page
from boxwright.base.read_settings import ReadSettings
from boxwright.base.remote import is_remote
from boxwright.base.settings import setting
from boxwright.base.text import counted, visible_line
from boxwright.cli.console import console, count_progress, print_json, suggest
from boxwright.cli.options import JsonOption, require_data
from boxwright.runtime.formats import EXPORTS

if TYPE_CHECKING:
    from boxwright.data.dataset import Dataset
    from boxwright.data.survey import Survey
    from boxwright.types import Categories, Sample

_SHOWN = 20
_CONFIGS = (".config",)
_LETTERS = 46  # characters that fit over an image of a sheet


@dataclass(frozen=True, kw_only=True)
class Output:
    """What `inspect` draws, and where; the command has an option for each."""

    sheet: Path = setting(Path("contact-sheet.png"), "Where to write the contact sheet.")
    pictures: int = setting(30, "How many images it shows.", least=1)
    augmented: int = setting(
        0,
        "With a pipeline.config: draw this many samples as the network sees them, augmented and resized, and print each "
        "step's random choices.",
        least=0,
    )
    step: int = setting(0, "With --augmented: as the network sees them in this training step.", least=0)
    report: Path | None = setting(
        None,
        "A folder for a page: objects by class, size, aspect and place, images by size, odd boxes, images that are "
        "nearly the same, and all images with their boxes.",
    )


def inspect_command(
    output: Output,
    reading: ReadSettings,
    data: Annotated[
        str,
        typer.Argument(
            help="A VOC folder, a COCO .json, CVAT's .xml, Label Studio's or FiftyOne's .json, YOLO's data.yaml, Open Images' .csv of boxes, TFRecords, "
            "WebDataset's .tar or Parquet: a file, a folder, a quoted glob, or name@10; of the last two also an address; "
            "or a pipeline.config, for its training data; or an exported .onnx, .xml, .tflite or .pt2, "
            "for its description."
        ),
    ],
    label_map: Annotated[
        Path | None,
        typer.Option(
            "--label_map",
            help="Classes and ids (.pbtxt); default: label_map.pbtxt beside the data, or the names in TFRecords.",
        ),
    ] = None,
    image_set: Annotated[
        str, typer.Option("--image_set", help="For VOC: a list in ImageSets/Main; for YOLO: val or test.")
    ] = "",
    image_folder: Annotated[
        Path | None, typer.Option("--image_folder", help="For COCO and Open Images: where the images are.")
    ] = None,
    *,
    as_json: JsonOption = False,
) -> None:
    """Count images, sizes, classes and suspicious boxes; draw a contact sheet of images with their boxes."""
    require_data(data)
    is_export = data.endswith(EXPORTS) and not _is_annotations(Path(data))
    if as_json and (output.augmented or is_export):
        raise DataError("--json: expected annotated data, without --augmented")
    if output.report is not None and (output.augmented or is_export):
        raise DataError("--report: expected annotated data, without --augmented")
    if is_export:
        _describe(data)
        return
    if output.augmented:
        _show_augmented(data, output)
        return
    _check_sheet(output.sheet)
    if output.report is not None:
        refuse_foreign_page(output.report)
    dataset = _open(data, label_map, image_set, image_folder, reading)
    print_account(dataset)
    survey, samples = _survey(dataset, data, output.pictures, output.report)
    _print(survey, dataset.categories)
    if samples:
        _draw(samples, dataset.categories, output.sheet)
    if output.report is not None:
        console.print(f"report: {output.report / 'index.html'} (open it in a browser)")
    if as_json:
        print_json(_counts(survey))
    _suggest_next(data, reading, is_whole=not (label_map or image_set or image_folder))


def _suggest_next(data: str, reading: ReadSettings, *, is_whole: bool) -> None:
    """Print the command that comes after a look at data; `is_whole` where they need no further options."""
    if data.endswith(_CONFIGS):
        suggest("doctor", data)
    elif (Path(data).exists() or is_remote(data)) and is_whole:
        flags = [name for name, given in asdict(reading).items() if given]
        suggest("train", data, *(f"--{name}" for name in flags))
    else:
        suggest("doctor", "pipeline.config", when="when a configuration reads these data")


def print_account(dataset: Dataset) -> None:
    """Print what data hold, and what of it is used."""
    from boxwright.data.account import take_account

    for line in take_account(dataset, count_progress("look at pictures and labels")).lines():
        console.print(line)


def _is_annotations(path: Path) -> bool:
    """Return whether a file is CVAT's, whose ending OpenVINO's have, too."""
    from boxwright.data.recognize import is_coco_file

    return path.suffix == ".xml" and is_coco_file(path)


def _survey(dataset: Dataset, name: str, pictures: int, report: Path | None) -> tuple[Survey, list[Sample]]:
    """Read the data once, for the survey and for its page."""
    from boxwright.data.survey import survey_dataset

    if report is None:
        return survey_dataset(dataset, num_pictures=pictures, progress=count_progress("inspect"))
    from boxwright.base.files import make_folder, unfinished
    from boxwright.report.data_report import DataCollector, write_data_report
    from boxwright.report.page import remove_parts
    from boxwright.report.settings import ReportSettings

    with unfinished(report, "a page on data") as folder:
        make_folder(folder / "data")
        remove_parts(folder)
        with DataCollector(dataset, folder, ReportSettings()) as collector:
            survey, samples = survey_dataset(
                dataset, num_pictures=pictures, progress=count_progress("inspect"), visit=collector.add
            )
            write_data_report(folder, name, survey, collector.tables(dataset.categories))
    return survey, samples


def _open(
    data: str, label_map: Path | None, image_set: str, image_folder: Path | None, reading: ReadSettings
) -> Dataset:
    """Return a configuration's training data, or the data at a path."""
    if data.endswith(_CONFIGS):
        from boxwright.pipeline.input_reader import build_dataset
        from boxwright.pipeline.load import load_config

        return build_dataset(load_config(data).train_input_reader, "train_input_reader")
    from boxwright.data.open_dataset import open_dataset

    return open_dataset(
        data,
        label_map=label_map,
        image_set=image_set,
        image_folder=image_folder,
        **asdict(reading),
    )


def _draw(samples: Sequence[Sample], categories: Categories, sheet: Path) -> None:
    from boxwright.base.drawing import SHEET_CELL, contact_sheet
    from boxwright.base.files import write_whole
    from boxwright.data.image_io import encode_picture
    from boxwright.evaluation.pictures import draw_sample

    drawn = [draw_sample(sample, categories, fit=SHEET_CELL) for sample in samples]
    titles = [sample.id[-40:] for sample in samples]
    write_whole(sheet, encode_picture(contact_sheet(drawn, titles, cell=None), sheet.suffix))
    console.print(f"contact sheet of {counted(len(samples), 'image')}: {sheet}")


def _describe(path: str) -> None:
    """Print an exported file's metadata."""
    from rich.table import Column, Table

    from boxwright.runtime.export_file import is_as_written, read_export_file
    from boxwright.runtime.sessions import read_metadata

    # An edited file is described as well; the row of its checksum says that it is edited.
    metadata = read_metadata(path, allow_edited=True)
    classes = metadata.classes()
    names = "unknown" if classes is None else ", ".join(f"{item.id} {visible_line(item.title)}" for item in classes)
    suppression = ", ".join(f"{name} {value}" for name, value in metadata.suppression.items())
    rows = {
        "format": f"{metadata.format}, {metadata.precision}",
        "written by": f"boxwright {metadata.boxwright}, "
        + ", ".join(f"{name} {version}" for name, version in metadata.versions.items()),
        "created": metadata.created,
        "step": str(metadata.step),
        "metric": ", ".join(f"{name} {value:.4f}" for name, value in metadata.metric.items()) or "unknown",
        "classes": names,
        "input": f"{metadata.input.get('name')}: {metadata.input.get('dtype')}, {metadata.input.get('colour')} in "
        f"{metadata.input.get('range')}; {metadata.input.get('resizer')}",
        "suppression": suppression,
        "weights": metadata.weights_sha256,
        "checksum": "valid" if is_as_written(read_export_file(path)) else "invalid: damaged or edited",
        "compared with the detector": f"{metadata.parity.get('verdict', 'never')} {metadata.parity.get('problem', '')}",
    }
    table = Table(Column(no_wrap=True), Column(overflow="fold"), show_header=False, box=None, padding=(0, 2, 0, 0))
    for name, value in rows.items():
        table.add_row(name, value)
    for name, meaning in metadata.outputs.items():
        table.add_row(f"output {name}", meaning)
    console.print(table)
    console.print(f"\n{metadata.config}")
    suggest("predict", "IMAGES", "--model_dir", path)


def _check_sheet(sheet: Path) -> None:
    if sheet.suffix.lower() not in (".png", ".jpg", ".jpeg"):
        raise DataError(f"--sheet {sheet}: expected a name that ends in .png or .jpg")


def _show_augmented(data: str, output: Output) -> None:
    """Draw samples as they reach the network, titled with each step's random choices; write the choices to a file."""
    sheet = output.sheet
    _check_sheet(sheet)
    if not data.endswith((*_CONFIGS, ".yaml", ".yml", ".json")):
        raise DataError(f"--augmented: {data} is not a configuration; name a pipeline.config, whose steps are applied")
    from boxwright.base.drawing import SHEET_CELL, contact_sheet
    from boxwright.base.files import write_whole
    from boxwright.data.image_io import encode_picture
    from boxwright.evaluation.pictures import draw_sample
    from boxwright.pipeline.load import load_config
    from boxwright.training.examples import preview_training

    dataset, previews = preview_training(load_config(data), output.augmented, step=output.step)
    pictures, titles, texts = [], [], []
    for preview in previews:
        sample = preview.sample
        pictures.append(draw_sample(sample, dataset.categories, fit=SHEET_CELL))
        name = sample.id or sample.filename
        lines = [
            line.replace("×", "x").replace("→", "to")[:_LETTERS] for line in preview.choices
        ]  # the font lacks these
        titles.append("\n".join([name[-_LETTERS:], *lines]))
        texts.append("\n  ".join([name, *preview.choices]))
    write_whole(sheet, encode_picture(contact_sheet(pictures, titles, columns=4, cell=None), sheet.suffix))
    choices = sheet.with_suffix(".txt")
    write_whole(choices, "\n".join(texts) + "\n")
    for text in texts[:_SHOWN]:
        console.print(text)
    console.print(f"{counted(len(previews), 'sample')} as the network sees them: {sheet}; choices: {choices}")
    suggest("train", "--pipeline_config_path", data, "--model_dir", "model")


def _counts(survey: Survey) -> dict[str, Any]:
    """Return what was counted, for JSON."""
    sizes = [{"width": width, "height": height, "images": n} for (height, width), n in survey.sizes.most_common()]
    return vars(survey) | {"sizes": sizes}


def _print(survey: Survey, categories: Categories) -> None:
    from rich.table import Table

    total = sum(survey.boxes.values())
    console.print(
        f"{counted(survey.images, 'image')}, {f'{survey.empty} without objects' if survey.empty else 'all with objects'}; "
        f"{counted(total, 'box', 'boxes')}, "
        f"{survey.difficult} difficult, {survey.crowds} crowds"
    )
    sizes = ", ".join(f"{width}×{height} ({count})" for (height, width), count in survey.sizes.most_common(5))
    more = len(survey.sizes) - 5
    console.print(f"sizes: {sizes}" + (f" and {more} more" if more > 0 else ""))
    if survey.left_out:
        console.print(f"not counted: {counted(survey.left_out, 'box', 'boxes')} of classes missing from the label map")
    console.print("boxes: " + ", ".join(f"{survey.areas[name]} {name}" for name in ("small", "medium", "large")))
    table = Table("class", "id", "boxes", "share", "images", box=None, padding=(0, 2, 0, 0))
    for category in categories:
        count = survey.boxes[category.name]
        share = f"{count / total:.1%}" if total else "-"
        table.add_row(category.name, str(category.id), str(count), share, str(survey.images_with[category.name]))
    console.print(table)
    for title, lines in (("suspicious boxes", survey.suspicious), ("unreadable samples", survey.unreadable)):
        console.print(f"{title}: {len(lines)}")
        for line in lines[:_SHOWN]:
            console.print(f"  {line}")
        if len(lines) > _SHOWN:
            console.print(f"  and {len(lines) - _SHOWN} more")
