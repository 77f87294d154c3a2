"""The pictures of blood cells that come with Boxwright: a part of BCCD, resized, with labels in COCO's format.

They lie in `assets/blood_cells`, with their author's license; `release/make_blood_cells.py` makes them.
"""

from __future__ import annotations

import shutil
from pathlib import Path

from boxwright.base.errors import OutputError
from boxwright.base.files import cause, make_folder, shown, unfinished

BLOOD_CELLS = Path(__file__).parent.parent / "assets" / "blood_cells"
TRAINING, TEST = "train", "test"


def sample_images() -> list[Path]:
    """Return the paths of the 72 test pictures of blood cells, in order of their names.

    They are JPEG files of 384×288 pixels. The detector `bw.load("demo")` was trained on others.
    """
    return sorted((BLOOD_CELLS / TEST).glob("*.jpg"))


def copy_blood_cells(folder: str | Path) -> Path:
    """Copy all pictures of blood cells, their labels and their license to a folder, and return it.

    Args:
        folder: It is created; one that has the pictures already is written again.

    Returns:
        The folder, which `boxwright train` takes as data.

    Raises:
        OutputError: If the disk is full, or the folder cannot be written.
    """
    with unfinished(folder, "pictures of blood cells") as target:
        for path in sorted(BLOOD_CELLS.rglob("*")):
            copy = target / path.relative_to(BLOOD_CELLS)
            if path.is_dir():
                make_folder(copy)
                continue
            try:
                shutil.copyfile(path, copy)
            except OSError as error:
                raise OutputError(f"{shown(copy)}: could not be written: {cause(error)}") from None
    return Path(folder)
