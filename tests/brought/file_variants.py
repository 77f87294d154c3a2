"""Variants of files: which picture a label is of, endings, encodings, names and paths of other machines."""

from __future__ import annotations

import json
import shutil
import tarfile
import unicodedata
import zipfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from tests.brought.layouts import (
    coco,
    darknet,
    raccoon,
    retinanet,
    voc,
    voc_xml,
    write,
    write_pictures,
    yolo,
    yolo_text,
    yolo_with_classes,
)
from tests.brought.pictures import Picture, named, pictures, renamed
from tests.brought.tool_layouts import createml, label_map, label_studio, labelme, records
from tests.brought.variant import Variant

Make = Callable[[Path], Path]
_HALVES = {"train": pictures()[:4], "val": pictures()[4:]}


def _voc(**options: Any) -> Make:
    return lambda to: voc(pictures(), to, **options)


def _coco(**options: Any) -> Make:
    return lambda to: coco(pictures(), to, **options)


def _coco_named(pattern: str, **options: Any) -> Make:
    """Return what writes COCO whose names follow a pattern, the pictures lying in `images` under their own."""
    return _coco(file_name=lambda picture: pattern.format(name=picture.name), **options)


def _voc_named(filenames: Callable[[Picture], str], stem: Callable[[Picture], str] = lambda one: one.stem) -> Make:
    return _voc(stem=stem, text=lambda one: voc_xml(one, filename=filenames(one)))


def _then(make: Make, change: Callable[[Path], Any]) -> Make:
    """Return what writes data and then changes them."""

    def whole(to: Path) -> Path:
        path = make(to)
        change(to)
        return path

    return whole


def _next(picture: Picture) -> str:
    """Return the name of the picture after a picture, in a circle."""
    return f"p{(int(picture.stem[1:]) + 1) % 5}.png"


def _label(picture: Picture) -> str:
    return f"label_{picture.stem}"


WHICH_PICTURE: dict[str, Variant] = {
    "VOC, <filename> of another picture": Variant(_voc_named(_next), said="filename"),
    "VOC, one <filename> in all, that exists": Variant(_voc_named(lambda _: "p0.png"), said="filename"),
    "VOC, one <filename> in all, that does not exist": Variant(_voc_named(lambda _: "image.jpg")),
    "VOC, <filename> without ending, other stem": Variant(_voc_named(lambda one: one.stem, _label)),
    "VOC, other stem": Variant(_voc_named(lambda one: one.name, _label)),
    "VOC, empty <filename>": Variant(_voc_named(lambda _: "")),
    "VOC, <filename> of a Windows path, other stem": Variant(
        _voc_named(lambda one: f"C:\\Users\\me\\{one.name}", _label)
    ),
    "VOC, <filename> of another machine's path, other stem": Variant(
        _voc_named(lambda one: f"/home/me/{one.name}", _label)
    ),
    "VOC, <filename> of a URL, other stem": Variant(
        _voc_named(lambda one: f"https://host/bucket/{one.name}?x=1", _label)
    ),
    "VOC, one <filename> in all, other stems": Variant(_voc_named(lambda _: "p0.png", _label), None, refused="p0.png"),
    "VOC, a picture without annotation": Variant(
        _then(_voc(), lambda to: write_pictures(renamed(pictures(1), "lonely.png"), to / "JPEGImages")),
        said="without|lonely",
    ),
    "VOC, an annotation without picture": Variant(
        _then(_voc(), lambda to: (to / "JPEGImages" / "p4.png").unlink()), 8, problem="p4"
    ),
    "VOC, pictures without objects": Variant(
        _then(
            _voc(),
            lambda to: write(to / "Annotations" / "p4.xml", "<annotation><filename>p4.png</filename></annotation>"),
        ),
        8,
    ),
    "YOLO, a picture without label file": Variant(
        _then(lambda to: yolo(_HALVES, to), lambda to: (to / "train" / "labels" / "p0.txt").unlink()),
        8,
        said="without|no label",
    ),
    "YOLO, an empty label file": Variant(
        _then(lambda to: yolo(_HALVES, to), lambda to: write(to / "train" / "labels" / "p0.txt", "\n\n")), 8
    ),
    "YOLO, a label file without picture": Variant(
        _then(lambda to: yolo(_HALVES, to), lambda to: (to / "train" / "images" / "p0.png").unlink()),
        8,
        said="without|no (picture|image)",
    ),
    "YOLO, label files of other names": Variant(
        _then(
            lambda to: yolo(_HALVES, to),
            lambda to: [one.rename(one.with_name(f"x{one.name}")) for one in to.glob("*/labels/*.txt")],
        ),
        None,
        refused="label",
    ),
    "YOLO, a folder named Labels": Variant(lambda to: yolo(_HALVES, to, labels="{split}/Labels"), refused="label"),
    "COCO, a picture that is absent": Variant(
        _then(_coco(), lambda to: (to / "images" / "p4.png").unlink()), 8, problem="p4.png"
    ),
}


# Endings and formats


def _of_endings(make: Callable[[list[Picture], Path], Path], *endings: str) -> Make:
    """Return what writes one picture for each ending."""
    given = [pictures(len(endings), suffix=ending)[number] for number, ending in enumerate(endings)]
    return lambda to: make(given, to)


def _lying(picture: Picture, suffix: str) -> Picture:
    """Return a picture under an ending of another format."""
    return named(picture, f"{picture.stem}{suffix}")


_LYING = [_lying(one, ".jpg") for one in pictures(3)] + [_lying(one, ".png") for one in pictures(5, suffix=".jpg")[3:]]
_ODD = (".jfif", ".gif", ".avif", ".mpo", ".ppm", ".jpg")


def _yolo_of(given: Sequence[Picture], to: Path) -> Path:
    return yolo({"train": given}, to)


ENDINGS: dict[str, Variant] = {
    "YOLO, odd endings": Variant(_of_endings(_yolo_of, *_ODD), 12),
    "VOC, odd endings": Variant(_of_endings(voc, *_ODD), 12),
    "COCO, odd endings": Variant(_of_endings(coco, *_ODD), 12),
    "YOLO with classes.txt, odd endings": Variant(_of_endings(yolo_with_classes, *_ODD), 12),
    "YOLO, endings of any case": Variant(_of_endings(_yolo_of, ".JPG", ".Png", ".JPEG", ".BMP", ".TIF"), 10),
    "VOC, endings of any case": Variant(_of_endings(voc, ".JPG", ".Png", ".JPEG", ".BMP", ".WebP"), 10),
    "VOC, <filename> of another case": Variant(
        lambda to: voc(pictures(suffix=".PNG"), to, text=lambda one: voc_xml(one, filename=f"{one.stem}.png"))
    ),
    "VOC, stems of another case": Variant(
        lambda to: voc(
            renamed(pictures(), "IMG_{number}.PNG"), to, text=lambda one: voc_xml(one, filename=one.name.lower())
        )
    ),
    "VOC, endings of other formats": Variant(lambda to: voc(_LYING, to)),
    "YOLO, endings of other formats": Variant(lambda to: _yolo_of(_LYING, to)),
    "YOLO, pictures without ending": Variant(
        lambda to: _yolo_of([named(one, one.stem) for one in pictures()], to), refused="ending|suffix"
    ),
    "VOC, annotations that end in .XML": Variant(_voc(ending=".XML")),
    "VOC, all in one folder, .XML": Variant(_voc(images=".", annotations=".", ending=".XML")),
    "COCO, Annotations.JSON": Variant(_coco(name="Annotations.JSON")),
    "a file that is no picture": Variant(
        _then(_voc(), lambda to: write(to / "JPEGImages" / "p4.png", "<html>not found</html>")), 8, problem="p4"
    ),
}


# Encodings


def _umlauts(encoding: str, **options: Any) -> Variant:
    return Variant(_voc(names={"green": "grün"}, encoding=encoding, **options), classes={"grün": "green"})


def _with_declaration(encoding: str, declared: str) -> Make:
    def make(to: Path) -> Path:
        head = f'<?xml version="1.0" encoding="{declared}"?>\n'
        return voc(pictures(), to, text=lambda one: head + voc_xml(one, names={"green": "grün"}), encoding=encoding)

    return make


def _rewritten(make: Make, pattern: str, change: Callable[[str], bytes]) -> Make:
    """Return what writes data, with the bytes of some files changed."""
    return _then(make, lambda to: [one.write_bytes(change(one.read_text())) for one in to.rglob(pattern)])


def _bom(text: str) -> bytes:
    return text.replace("\n", "\r\n").encode("utf-8-sig")


_GREEN = {"grün": "green"}

ENCODINGS: dict[str, Variant] = {
    "VOC, UTF-8 with a BOM": _umlauts("utf-8-sig"),
    "VOC, UTF-16": _umlauts("utf-16"),
    "VOC, Windows-1252 without a declaration": _umlauts("cp1252"),
    "VOC, Latin-1 declared": Variant(_with_declaration("latin-1", "ISO-8859-1"), classes=_GREEN),
    "VOC, Windows-1252 declared as UTF-8": Variant(_with_declaration("cp1252", "utf-8"), classes=_GREEN),
    "COCO, UTF-8 with a BOM": Variant(_coco(encoding="utf-8-sig")),
    "COCO, UTF-16": Variant(_coco(encoding="utf-16")),
    "YOLO, data.yaml with a BOM": Variant(lambda to: yolo(_HALVES, to, yaml_encoding="utf-8-sig")),
    "YOLO, data.yaml in UTF-16": Variant(lambda to: yolo(_HALVES, to, yaml_encoding="utf-16")),
    "YOLO, data.yaml in Windows-1252": Variant(
        lambda to: _of_text(to, "train: train/images\nnc: 3\nnames: [red, grün, blue]\n".encode("cp1252")),
        classes=_GREEN,
    ),
    "YOLO, label files with a BOM and CRLF": Variant(_rewritten(lambda to: yolo(_HALVES, to), "*/labels/*.txt", _bom)),
    "YOLO, label files in UTF-16": Variant(
        _rewritten(lambda to: yolo(_HALVES, to), "*/labels/*.txt", lambda text: text.encode("utf-16"))
    ),
    "YOLO, classes.txt with a BOM and CRLF": Variant(
        _rewritten(lambda to: yolo_with_classes(pictures(), to), "classes.txt", _bom)
    ),
    "Darknet, lists with a BOM and CRLF": Variant(
        _rewritten(lambda to: darknet({"train": pictures()}, to), "train.txt", _bom)
    ),
    "raccoon CSV, UTF-8 with a BOM": Variant(lambda to: raccoon(pictures(), to, encoding="utf-8-sig")),
    "raccoon CSV, UTF-16": Variant(lambda to: raccoon(pictures(), to, encoding="utf-16")),
    "raccoon CSV, semicolons": Variant(
        _rewritten(lambda to: raccoon(pictures(), to), "*.csv", lambda text: text.replace(",", ";").encode()),
        refused="comma|semicolon|;",
    ),
    "LabelMe, UTF-8 with a BOM": Variant(_rewritten(lambda to: labelme(pictures(), to), "*.json", _bom)),
    "VOC, list with a BOM and CRLF": Variant(
        _then(_voc(), lambda to: write(to / "ImageSets" / "Main" / "train.txt", _bom("p0\np1\np2\np3\np4\n")))
    ),
}


def _of_text(to: Path, content: bytes, row: Callable[[Picture], str] = yolo_text) -> Path:
    """Write one folder of YOLO's, with this `data.yaml`."""
    write_pictures(pictures(), to / "train" / "images")
    for picture in pictures():
        write(to / "train" / "labels" / f"{picture.stem}.txt", row(picture))
    write(to / "data.yaml", content)
    return to


# Names and paths

_NFC = [named(one, unicodedata.normalize("NFC", f"bäume é {one.name}")) for one in pictures()]


def _nfd(text: str) -> str:
    return unicodedata.normalize("NFD", text)


_NFD = [named(one, _nfd(one.name)) for one in _NFC]


def _crossed(given: Sequence[Picture], change: Callable[[str], str], to: Path) -> Path:
    """Write YOLO whose label files have their names in another form than the pictures."""
    write_pictures(given, to / "train" / "images")
    for picture in given:
        write(to / "train" / "labels" / f"{change(picture.stem)}.txt", yolo_text(picture))
    write(to / "data.yaml", "train: train/images\nnames: [red, green, blue]\n")
    return to


def _nfc(text: str) -> str:
    return unicodedata.normalize("NFC", text)


def _lists(pattern: str) -> Make:
    """Return what writes YOLO with a list of pictures, each line by a pattern."""

    def make(to: Path) -> Path:
        lines = [pattern.format(name=picture.name) for picture in pictures()]
        write(to / "train.txt", "\n".join(lines) + "\n")
        return _of_text(to, b"train: train.txt\nnames: [red, green, blue]\n")

    return make


_ODD_NAMES = ("my photo (1).png", "-dash.png", "a.b.c.png", "100% é #5.png", "'quoted' & more.png")
_ODDLY_NAMED = [named(one, name) for one, name in zip(pictures(), _ODD_NAMES, strict=True)]

NAMES: dict[str, Variant] = {
    **{
        f"{name}, odd names": Variant(lambda to, make=make: make(_ODDLY_NAMED, to))  # type: ignore[misc]
        for name, make in {
            "VOC": voc,
            "COCO": coco,
            "YOLO": _yolo_of,
            "YOLO with classes.txt": yolo_with_classes,
            "raccoon CSV": raccoon,
            "LabelMe": labelme,
            "CreateML": createml,
        }.items()
    },
    "COCO, NFC for names in NFD": Variant(lambda to: coco(_NFD, to, file_name=lambda one: _nfc(one.name))),
    "COCO, NFD for names in NFC": Variant(lambda to: coco(_NFC, to, file_name=lambda one: _nfd(one.name))),
    "VOC, NFC for names in NFD": Variant(
        lambda to: voc(_NFD, to, text=lambda one: voc_xml(one, filename=_nfc(one.name)))
    ),
    "VOC, stems in NFD for pictures in NFC": Variant(
        lambda to: voc(_NFC, to, stem=lambda one: _nfd(one.stem), filename="")
    ),
    "YOLO, labels in NFD for pictures in NFC": Variant(lambda to: _crossed(_NFC, _nfd, to)),
    "YOLO, labels in NFC for pictures in NFD": Variant(lambda to: _crossed(_NFD, _nfc, to)),
    "raccoon CSV, NFD for names in NFC": Variant(
        _rewritten(lambda to: raccoon(_NFC, to), "*.csv", lambda text: _nfd(text).encode())
    ),
    "COCO, backslashes": Variant(_coco_named("images\\{name}")),
    "COCO, backslashes and dots": Variant(_coco_named("..\\images\\{name}", name="annotations/instances.json")),
    "COCO, drive letter": Variant(_coco_named("C:\\Users\\me\\data\\images\\{name}")),
    "COCO, absolute path of another machine": Variant(_coco_named("/home/me/data/images/{name}")),
    "COCO, URLs": Variant(_coco_named("https://host/bucket/images/{name}")),
    "COCO, URLs with a query": Variant(_coco_named("https://host/bucket/{name}?alt=media&token=1")),
    "COCO, folder above": Variant(_coco_named("data/images/{name}")),
    "YOLO, list with backslashes": Variant(_lists("train\\images\\{name}")),
    "YOLO, list with ./ and trailing blanks": Variant(_lists("./train/images/{name}  ")),
    "YOLO, list of another machine's paths": Variant(_lists("/home/me/set/train/images/{name}")),
    "YOLO, list with drive letters": Variant(_lists("D:\\set\\train\\images\\{name}")),
    "YOLO, folder with a drive letter": Variant(
        lambda to: _of_text(to, b"train: H:/datasets/x/train/images\nnames: [red, green, blue]\n")
    ),
    "YOLO, path of another machine": Variant(
        lambda to: _of_text(to, b"path: /home/me/x\ntrain: train/images\nnames: [red, green, blue]\n")
    ),
    "YOLO, folder of Roboflow's ../": Variant(
        lambda to: _of_text(to, b"train: ../train/images\nnames: [red, green, blue]\n")
    ),
    "RetinaNet CSV, absolute path of another machine": Variant(
        _rewritten(
            lambda to: retinanet(pictures(), to),
            "annotations.csv",
            lambda text: text.replace("images/", "/home/me/images/").encode(),
        )
    ),
    "RetinaNet CSV, backslashes": Variant(
        _rewritten(
            lambda to: retinanet(pictures(), to),
            "annotations.csv",
            lambda text: text.replace("images/", "images\\").encode(),
        )
    ),
    "LabelMe, backslashes": Variant(lambda to: labelme(pictures(), to, image_path=lambda one: f"..\\x\\{one.name}")),
    "Label Studio, local files": Variant(
        lambda to: label_studio(pictures(), to, address="/data/local-files/?d=data/images/{name}")
    ),
    "Label Studio, addresses in a store": Variant(
        lambda to: label_studio(pictures(), to, address="s3://bucket/folder/{name}")
    ),
}


# What systems and archives leave


def _apple(to: Path) -> None:
    """Add the companions that macOS writes on foreign disks."""
    for one in [path for path in to.rglob("*") if path.is_file()]:
        write(one.with_name(f"._{one.name}"), b"\x00\x05\x16\x07\x00\x02\x00\x00Mac OS X" + bytes(66))
    write(to / ".DS_Store", b"\x00\x00\x00\x01Bud1")


def _deeper(make: Make, *between: str) -> Make:
    """Return what writes data some folders below, and returns the folder above."""

    def whole(to: Path) -> Path:
        make(to.joinpath(*between))
        return to

    return whole


def _packed(make: Make, ending: str, prefix: str = "") -> Make:
    """Return what writes data into an archive alone."""

    def whole(to: Path) -> Path:
        make(to / "inside")
        path = to / f"export.{ending}"
        files = sorted(one for one in (to / "inside").rglob("*") if one.is_file())
        members = {f"{prefix}{one.relative_to(to / 'inside')}": one.read_bytes() for one in files}
        shutil.rmtree(to / "inside")
        return _archive(path, members)

    return whole


def _archive(path: Path, members: Mapping[str, bytes]) -> Path:
    if path.suffix == ".zip":
        with zipfile.ZipFile(path, "w") as file:
            for name, data in members.items():
                file.writestr(name, data)
        return path
    whole = path.parent / "unpacked"
    with tarfile.open(path, "w:gz" if path.suffix in (".gz", ".tgz") else "w") as archive:
        for name, data in members.items():
            archive.add(write(whole / name, data), name)
    shutil.rmtree(whole)
    return path


def _with_macosx(make: Make, ending: str) -> Make:
    def whole(to: Path) -> Path:
        make(to / "mine")
        write(to / "__MACOSX" / "mine" / "._annotations.json", b"\x00\x05\x16\x07")
        return to

    return _packed(whole, ending) if ending else whole


def _by_class(to: Path) -> Path:
    for picture in pictures():
        write_pictures([picture], to / "train" / picture.objects[0].name)
    return to


_SETS: dict[str, Make] = {
    "VOC": _voc(),
    "COCO": _coco(),
    "YOLO": lambda to: yolo(_HALVES, to),
    "TFRecords": lambda to: records({"train.record": pictures()}, to),
}

LEFT_BY_SYSTEMS: dict[str, Variant] = {
    **{f"{name} with ._ companions": Variant(_then(make, _apple)) for name, make in _SETS.items()},
    **{f"{name}, one folder too deep": Variant(_deeper(make, "my-project")) for name, make in _SETS.items()},
    **{f"{name} in a zip": Variant(_packed(make, "zip")) for name, make in _SETS.items()},
    "COCO beside __MACOSX": Variant(_with_macosx(_coco(), "")),
    "COCO in a zip with a folder and __MACOSX": Variant(_with_macosx(_coco(), "zip")),
    "YOLO in a zip with a folder": Variant(_packed(_SETS["YOLO"], "zip", "my-project/")),
    "VOC in a tar": Variant(_packed(_voc(), "tar")),
    "YOLO in a tar.gz": Variant(_packed(_SETS["YOLO"], "tar.gz")),
    "LabelMe in a tgz": Variant(_packed(lambda to: labelme(pictures(), to), "tgz")),
    "a zip that leads outside": Variant(
        lambda to: _archive(to / "x.zip", {"../../outside.json": b"{}"}), None, refused="outside|x.zip"
    ),
    "a zip cut off": Variant(
        lambda to: write(to / "x.zip", b"PK\x03\x04" + bytes(40)), None, refused="damaged archive"
    ),
    "VOC with Thumbs.db and desktop.ini": Variant(
        _then(
            _voc(), lambda to: [write(to / "JPEGImages" / name, b"\xd0\xcf") for name in ("Thumbs.db", "desktop.ini")]
        )
    ),
    "an empty folder": Variant(lambda to: to, None, refused="empty"),
    "pictures alone": Variant(
        lambda to: write_pictures(pictures(), to),
        None,
        refused="no annotations",
    ),
    "folders named as classes": Variant(
        lambda to: _by_class(to),
        None,
        refused="box|annotation",
    ),
    "detections without annotations": Variant(
        lambda to: write(to / "results.json", json.dumps({"a": [1, 2]})).parent, None, refused="results.json|expected"
    ),
    "label map alone": Variant(lambda to: write(to / "label_map.pbtxt", label_map()).parent, None, refused="expected"),
}
