"""The layouts that are read as the content of a COCO file: a new one is a file beside this and a line here."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from boxwright.base.files import is_file, is_folder
from boxwright.data.cvat import is_cvat_text, read_cvat
from boxwright.data.fiftyone import is_fiftyone_text, read_fiftyone
from boxwright.data.label_studio import is_json_min_text, is_label_studio_text, read_json_min, read_label_studio
from boxwright.data.layouts.content import containing_folder, only_file, read_beginning
from boxwright.data.layouts.csv_tables import is_csv_table_text, read_csv_table
from boxwright.data.layouts.datumaro import datumaro_folder, is_datumaro, read_datumaro
from boxwright.data.layouts.hugging_face import (
    is_image_folder,
    is_parquet,
    parquet_folder,
    read_image_folder,
    read_parquet,
)
from boxwright.data.layouts.json_exports import is_createml_text, is_vott_text, read_createml, read_vott
from boxwright.data.layouts.labelme import is_labelme, read_labelme
from boxwright.data.layouts.supervisely import is_supervisely, read_supervisely
from boxwright.data.layouts.text_labels import (
    is_kitti,
    is_oid_toolkit,
    is_visdrone,
    read_kitti,
    read_oid_toolkit,
    read_visdrone,
)
from boxwright.data.layouts.via import is_via, read_via


@dataclass(frozen=True)
class Layout:
    """How annotations are stored.

    Attributes:
        name: For messages.
        recognizes: Whether a file or a folder is of this layout, by names and the beginning of few files. A folder is
            one part of a data set: with several files for its parts, it is not recognized, but each of them is.
        read: Returns the content of a COCO file, of a path and the folder that pictures are named relative to; None for
            the folder that `picture_folder` returns.
        picture_folder: Returns the folder that pictures are named relative to by default.
    """

    name: str
    recognizes: Callable[[Path], bool]
    read: Callable[[Path, Path | None], dict[str, Any]]
    picture_folder: Callable[[Path], Path] = containing_folder


def _single_file(
    name: str, is_text: Callable[[str], bool], ending: str, read: Callable[[Path, Path | None], dict[str, Any]]
) -> Layout:
    """Return the layout of one file, which its beginning shows, or of a folder with only one such file."""

    def file(path: Path) -> Path | None:
        return only_file(path, lambda candidate: is_text(read_beginning(candidate)), ending)

    return Layout(name, lambda path: file(path) is not None, lambda path, folder: read(file(path) or path, folder))


# Folders of fixed names come first, as such a folder may hold other files too. Then JSON by what only one tool writes:
# Create ML's images could be Label Studio's tasks but for their first key, and LabelMe, which has a file a picture and
# few words of its own, is last of them. Tables come last, as they lie beside other annotations, too.
LAYOUTS = (
    Layout("KITTI's labels", is_kitti, read_kitti),
    Layout("VisDrone's labels", is_visdrone, read_visdrone),
    Layout("Supervisely's project", is_supervisely, read_supervisely),
    Layout("Datumaro's JSON", is_datumaro, read_datumaro, datumaro_folder),
    Layout("Hugging Face's imagefolder", is_image_folder, read_image_folder),
    Layout("Hugging Face's Parquet", is_parquet, read_parquet, parquet_folder),
    Layout("OIDv4 ToolKit's labels", is_oid_toolkit, read_oid_toolkit),
    _single_file("CVAT's XML", is_cvat_text, ".xml", lambda file, _: read_cvat(file)),
    Layout("VGG Image Annotator's regions", is_via, read_via),
    _single_file("Create ML's JSON", is_createml_text, ".json", lambda file, _: read_createml(file)),
    _single_file("VoTT's JSON", is_vott_text, ".json", lambda file, _: read_vott(file)),
    _single_file("Label Studio's JSON-MIN", is_json_min_text, ".json", read_json_min),
    _single_file("Label Studio's JSON", is_label_studio_text, ".json", read_label_studio),
    _single_file("FiftyOne's labels", is_fiftyone_text, ".json", read_fiftyone),
    Layout("LabelMe's JSON", is_labelme, read_labelme),
    _single_file("a CSV table", is_csv_table_text, ".csv", lambda file, _: read_csv_table(file)),
)


def find_layout(path: Path) -> Layout | None:
    """Return the layout of a file or a folder; None if it is of none."""
    if not (is_file(path) or is_folder(path)):
        return None
    return next((layout for layout in LAYOUTS if layout.recognizes(path)), None)
