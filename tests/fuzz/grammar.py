"""Documents that have a format's grammar, and odd values in places of a good one: what few changed bytes reach.

Hypothesis draws them. A tree of a good document (dicts, lists and values) is edited in some places and then written as
JSON, YAML, XML, protobuf's text or CSV; configurations are drawn from the declared fields of the messages.
"""

from __future__ import annotations

import ast
import copy
import csv
import functools
import io
import itertools
import json
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from xml.sax.saxutils import escape, quoteattr

import hypothesis
import yaml
from hypothesis import strategies as st
from hypothesis.strategies import SearchStrategy

from boxwright.base.errors import BoxwrightError
from boxwright.config.message import Message
from boxwright.pipeline.messages import TrainEvalPipelineConfig
from tests.fuzz.guard import guarded
from tests.fuzz.reader import AcceptedError
from tests.fuzz.readers import COCO, READERS

Tree = Any

TEXTS = st.one_of(
    st.text(max_size=8),
    st.sampled_from(
        [
            "",
            "a.png",
            "../a.png",
            "/etc/passwd",
            "a\nb",
            "a\0b",
            "\x1b]0;t\x07",
            "x" * 5000,
            "=1+1",
            "\u202ea",
            "s3://b/k",
        ]
    ),
    st.sampled_from(
        ["NaN", "-inf", "1e999", "0x10", "1_0", "٣", "1" * 400, "true", "null", "~", "[x]", "{", "<a>", "&a;"]
    ),
)
NUMBERS = st.one_of(
    st.integers(-3, 200),
    st.floats(),
    st.sampled_from([2**31, 2**63, -(2**63) - 1, 2**64, 10**40, 10**400, 5e-324, 1e308, -0.0]),
)
VALUES: SearchStrategy[Tree] = st.recursive(
    st.one_of(st.none(), st.booleans(), NUMBERS, TEXTS),
    lambda inner: st.one_of(st.lists(inner, max_size=3), st.dictionaries(TEXTS, inner, max_size=3)),
    max_leaves=5,
)


def places(tree: Tree) -> Iterator[tuple[Any, Any]]:
    """Yield each container of a tree with each of its keys, or indices."""
    keys = tree if isinstance(tree, dict) else range(len(tree)) if isinstance(tree, list) else ()
    for key in keys:
        yield tree, key
        yield from places(tree[key])


@st.composite
def edited(draw: st.DrawFn, document: Tree) -> Tree:
    """Draw a document with one to four edits."""
    root = [copy.deepcopy(document)]
    for _ in range(draw(st.sampled_from([1, 1, 1, 2, 4]))):
        where = list(places(root))
        owner, key = where[draw(st.integers(0, len(where) - 1))]
        edit = draw(st.sampled_from(["replace", "replace", "remove", "again", "wrap", "move", "rename"]))
        if edit == "replace":
            owner[key] = draw(VALUES)
        elif edit == "wrap":
            owner[key] = draw(st.sampled_from([[owner[key]], {"a": owner[key]}, [owner[key]] * 40]))
        elif edit == "move":
            other, name = where[draw(st.integers(0, len(where) - 1))]
            owner[key] = copy.deepcopy(other[name])
        elif isinstance(owner, dict):
            value = owner.pop(key)
            if edit != "remove":
                owner[draw(TEXTS)] = value
        elif owner is not root:
            if edit == "remove":
                del owner[key]
            else:
                owner.insert(key, copy.deepcopy(owner[key]))
    return root[0]


def to_json(document: Tree) -> SearchStrategy[bytes]:
    def write(tree: Tree, ascii: bool, more: str) -> bytes:
        return (json.dumps(tree, ensure_ascii=ascii) + more).encode("utf-8", "surrogatepass")

    return st.builds(write, edited(document), st.booleans(), st.sampled_from(["", "", "", "\n", "{}", "\0"]))


def to_json_lines(document: list[Tree]) -> SearchStrategy[bytes]:
    def write(tree: Tree) -> bytes:
        return "\n".join(map(json.dumps, tree if isinstance(tree, list) else [tree])).encode()

    return st.builds(write, edited(document))


@st.composite
def to_yaml(draw: st.DrawFn, document: Tree) -> bytes:
    """Draw YAML with aliases, also of what contains them, tags, and several documents."""
    tree = draw(edited(document))
    if isinstance(tree, dict) and draw(st.booleans()):
        shared = draw(st.sampled_from([tree, [*map(str, tree)], [tree] * 9]))
        tree[draw(st.sampled_from(["more", "names", "<<", "train"]))] = [shared] * draw(st.integers(1, 5))
    text = yaml.dump(
        tree, default_flow_style=draw(st.sampled_from([None, True, False])), allow_unicode=draw(st.booleans())
    )
    head = draw(
        st.sampled_from(
            ["", "", "", "---\n", "--- !!set\n", "--- !!python/object/apply:os.getcwd\n", "%YAML 9.9\n---\n"]
        )
    )
    return (head + text + draw(st.sampled_from(["", "", "---\na: 1\n", "...\n", "\t"]))).encode(
        "utf-8", "surrogatepass"
    )


def _xml(name: str, tree: Tree) -> str:
    tag = name if name.isidentifier() else "a"
    if isinstance(tree, list):
        return "".join(_xml(tag, item) for item in tree)
    if isinstance(tree, dict):
        attributes = "".join(f" {key[1:]}={quoteattr(str(value))}" for key, value in tree.items() if key[:1] == "@")
        inside = "".join(_xml(key, value) for key, value in tree.items() if key[:1] != "@")
        return f"<{tag}{attributes}>{inside}</{tag}>"
    return f"<{tag}>{escape(str(tree))}</{tag}>"


@st.composite
def to_xml(draw: st.DrawFn, name: str, document: Tree) -> bytes:
    """Draw XML with entities, sections, comments, other encodings and namespaces."""
    text = _xml(name, draw(edited(document)))
    odd = st.sampled_from(
        ["<!--x-->", "<![CDATA[7]]>", "&e;", "&#48;", "&#0;", "<?a b?>", "<x:a xmlns:x='y'/>", "<b/>", "7"]
    )
    for _ in range(draw(st.integers(0, 2)) if text else 0):
        at = [place + (letter == ">") for place, letter in enumerate(text) if letter in "<>"]
        place = at[draw(st.integers(0, len(at) - 1))]
        text = text[:place] + draw(odd) + text[place:]
    heads = [
        "",
        "",
        "<?xml version='1.0'?>",
        "<?xml version='1.0' encoding='utf-16'?>",
        "<?xml version='1.0' encoding='x'?>",
    ]
    kinds = ["", "", "<!DOCTYPE a [<!ENTITY e '7'>]>", "<!DOCTYPE a [<!ENTITY e SYSTEM 'file:///etc/passwd'>]>"]
    return (draw(st.sampled_from(heads)) + draw(st.sampled_from(kinds)) + text).encode("utf-8", "surrogatepass")


class Word(str):
    """A word without quotes in protobuf's text, such as an enum's member."""

    __slots__ = ()


def _proto(tree: Tree) -> str:
    """Return a dict as protobuf's text."""
    lines = []
    for key, value in tree.items() if isinstance(tree, dict) else [("a", tree)]:
        for item in value if isinstance(value, list) and value else [value]:
            inside = f"{{ {_proto(item)} }}" if isinstance(item, dict) else f": {_scalar(item)}"
            lines.append(f"{key} {inside}")
    return "\n".join(lines)


def _scalar(value: Tree) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    return str(value) if isinstance(value, Word | int | float) else json.dumps(value, default=str)


def to_proto(document: Tree) -> SearchStrategy[bytes]:
    return st.builds(lambda tree: _proto(tree).encode("utf-8", "surrogatepass"), edited(document))


@st.composite
def message(draw: st.DrawFn, kind: type[Message], depth: int = 0) -> dict[str, Tree]:
    """Draw a message by its declared fields, most values of their types, as a tree."""
    names = [name for name, field in kind.fields.items() if field.kind != "message" or depth < 7]
    tree: dict[str, Tree] = {}
    for _ in range(draw(st.integers(0, 4)) if names else 0):
        name = names[draw(st.integers(0, len(names) - 1))]
        field = kind.fields[name]
        values = message(field.type, depth + 1) if field.kind == "message" else _VALUES_BY_KIND[field.kind]
        if field.kind == "enum":
            values = st.sampled_from([Word(member) for member in field.type.__members__])
        if field.repeated:
            values = st.lists(values, max_size=3)
        tree[name] = draw(VALUES) if draw(st.integers(0, 19)) == 0 else draw(values)
    return tree


_VALUES_BY_KIND: dict[str, SearchStrategy[Tree]] = {
    "int": st.one_of(st.integers(0, 5), NUMBERS),
    "float": st.one_of(st.floats(0, 1, width=32), NUMBERS),
    "bool": st.booleans(),
    "string": TEXTS,
    "enum": st.nothing(),
}


def _plain(tree: Tree) -> Tree:
    """Return a tree whose words are texts, which YAML and JSON write."""
    if isinstance(tree, dict):
        return {key: _plain(value) for key, value in tree.items()}
    if isinstance(tree, list):
        return [_plain(item) for item in tree]
    return str(tree) if isinstance(tree, Word) else tree


def to_csv(document: list[list[Tree]]) -> SearchStrategy[bytes]:
    def write(tree: Tree, delimiter: str, quoting: int, end: str, mark: bytes) -> bytes:
        text = io.StringIO()
        writer = csv.writer(text, delimiter=delimiter, quoting=quoting, lineterminator=end, escapechar="\\")
        for row in tree if isinstance(tree, list) else [[tree]]:
            cells = row if isinstance(row, list) else [row]
            writer.writerow(
                [*cells, 0] if len(cells) == 1 and quoting == csv.QUOTE_NONE else cells
            )  # an empty one has quotes
        return mark + text.getvalue().encode("utf-8", "surrogatepass")

    quoting = st.sampled_from([csv.QUOTE_MINIMAL, csv.QUOTE_ALL, csv.QUOTE_NONE])
    marks = st.sampled_from([b"", b"", b"\xef\xbb\xbf", b"\xff\xfe", b"#"])
    return st.builds(
        write, edited(document), st.sampled_from(",,,;\t"), quoting, st.sampled_from(["\n", "\r\n", "\r"]), marks
    )


LABEL_MAP = {"item": [{"id": 1, "name": "cat"}, {"id": 3, "display_name": "D", "keypoints": [{"id": 1, "label": "k"}]}]}
VOC = {
    "filename": "a.jpg",
    "size": {"width": 30, "height": 24, "depth": 3},
    "segmented": 0,
    "object": [
        {"name": "circle", "difficult": 0, "bndbox": {"xmin": 1, "ymin": 2, "xmax": 20, "ymax": 20}},
        {"name": "square", "truncated": 1, "pose": "Left", "bndbox": {"xmin": 3, "ymin": 2, "xmax": 9, "ymax": 9.5}},
    ],
}
CVAT = {
    "version": 1.1,
    "meta": {"task": {"labels": {"label": [{"name": "car"}, {"name": "dog"}]}}},
    "image": [
        {
            "@id": 0,
            "@name": "a.png",
            "@width": 100,
            "@height": 80,
            "box": [{"@label": "car", "@xtl": 1, "@ytl": 2, "@xbr": 30, "@ybr": 40, "@occluded": 0}],
            "polygon": [{"@label": "dog", "@points": "1,2;30,2;30,40"}],
        }
    ],
}
DATA_YAML = {"path": ".", "train": "images", "val": ["images"], "nc": 2, "names": {0: "a", 1: "b"}, "kpt_shape": [1, 3]}
TABLE = [
    ["filename", "width", "height", "class", "xmin", "ymin", "xmax", "ymax"],
    ["a.png", 100, 80, "cat", 10, 20, 40, 60],
    ["a.png", 100, 80, "dog", 1.5, 2, 4, 6],
]
_JSON_READERS = (
    *("labelme", "via", "createml", "vott", "datumaro", "supervisely", "label_studio", "fiftyone"),
    *("keypoint_names", "context"),
)


def _config() -> SearchStrategy[Tree]:
    return message(TrainEvalPipelineConfig)


def grammars() -> dict[str, SearchStrategy[bytes]]:
    """Return for readers of `READERS` what draws their documents."""
    seeds = {name: READERS[name].seeds()[0] for name in (*_JSON_READERS, "imagefolder") if name in READERS}
    return {
        "config_text": st.builds(lambda tree: _proto(tree).encode("utf-8", "surrogatepass"), _config()),
        "config_json": _config().flatmap(lambda tree: to_json(_plain(tree))),
        "config_yaml": _config().flatmap(lambda tree: to_yaml(_plain(tree))),
        "label_map": to_proto(LABEL_MAP),
        "coco": to_json(COCO),
        "voc": to_xml("annotation", VOC),
        "cvat": to_xml("annotations", CVAT),
        "data_yaml": to_yaml(DATA_YAML),
        "csv": to_csv(TABLE),
        **{name: to_json(json.loads(seeds[name])) for name in _JSON_READERS if name in seeds},
        "imagefolder": to_json_lines([json.loads(line) for line in seeds["imagefolder"].splitlines()]),
    }


def read_documents(name: str, count: int, seed: int, folder: Path) -> dict[str, int]:
    """Return how many drawn documents a reader read, and how many it refused.

    Raises:
        AcceptedError: For an error that has several lines, and a file that the reader leaves in its folder, in the
            working directory or elsewhere below `folder`. Whatever else is raised is a finding as well.
    """
    found: Counter[str] = Counter()
    numbers = itertools.count()

    def files_after(number: int, data: bytes) -> set[str]:
        place = folder / str(number)
        place.mkdir()
        try:
            READERS[name].read(data, place)
            found["read"] += 1
        except BoxwrightError as error:
            found["refused"] += 1
            # Terminals and logs get control characters shown; a line feed begins a line there.
            if "\n" in str(error):
                raise AcceptedError(f"an error of several lines: {error!s:.300}") from error
        return {str(path.relative_to(place)) for path in place.rglob("*")}

    @hypothesis.seed(seed)
    @hypothesis.settings(
        max_examples=count,
        deadline=None,
        database=None,
        phases=[hypothesis.Phase.generate],
        suppress_health_check=list(hypothesis.HealthCheck),
    )
    @hypothesis.given(grammars()[name])
    def check(data: bytes) -> None:
        if more := files_after(next(numbers), data) - usual:
            raise AcceptedError(f"a reader wrote {sorted(more)[:3]}")

    usual = files_after(next(numbers), READERS[name].seeds()[0])
    found.clear()
    check()
    return dict(found)


# Documents of a reader at a time, in a process of their own.
_BATCH = 200


def fuzz_grammars(
    seed: int, seconds: float, count: int, write_finding: Callable[[str, bytes, str], None]
) -> Counter[str]:
    """Give each reader drawn documents in turn for so many seconds, or so many of them; return what became of them."""
    found: Counter[str] = Counter()
    until = time.monotonic() + seconds
    for number, name in enumerate(itertools.cycle(grammars())):
        if time.monotonic() > until or found.total() >= count:
            return found
        with tempfile.TemporaryDirectory(prefix="boxwright-fuzz-") as folder:
            batch = min(_BATCH, count - found.total())
            call = functools.partial(read_documents, name, batch, seed * 1_000_000 + number, Path(folder))
            outcome = guarded(call, seconds=600)
        if outcome.kind == "returned":
            found.update(ast.literal_eval(outcome.text))
        else:
            write_finding(f"grammar-{name}", b"", outcome.text)
            found["FINDING"] += 1
    return found
