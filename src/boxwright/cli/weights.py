"""`boxwright weights`: published weights by name: listed, described, fetched, checked."""

from __future__ import annotations

from dataclasses import asdict
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from boxwright.base.errors import CheckpointError, ConfigError
from boxwright.base.files import is_file
from boxwright.cli.console import console, print_json, suggest
from boxwright.cli.help import CONTEXT, PlainCommand, PlainGroup
from boxwright.cli.options import JsonOption, QuietOption, with_settings

if TYPE_CHECKING:
    from boxwright.weights.published import PublishedWeights

app = typer.Typer(
    cls=PlainGroup,
    context_settings=CONTEXT,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    help="Weights that others have published, by name: list, describe, fetch and check them.",
)
Name = Annotated[str, typer.Argument(help="A name, as boxwright weights list shows it.")]
Cache = Annotated[
    Path | None,
    typer.Option("--cache", help="The cache's folder; default: BOXWRIGHT_WEIGHTS, or weights in BOXWRIGHT_CACHE."),
]


@app.command("list", cls=PlainCommand)
@with_settings
def list_command(
    words: Annotated[list[str] | None, typer.Argument(help="Only names, publishers and data with these words.")] = None,
    *,
    backbones: Annotated[
        bool, typer.Option("--backbones", help="List backbones' weights instead of detectors'.")
    ] = False,
    as_json: JsonOption = False,
    cache: Cache = None,
) -> None:
    """List names with publisher, data, license, average precision by the authors and size; and what is cached."""
    from boxwright.weights.fetch import cached_published
    from boxwright.weights.published import published_weights

    holds = "backbone" if backbones else "detector"
    listed = [
        weights
        for weights in published_weights()
        if weights.holds == holds and all(word.lower() in _searched(weights) for word in words or ())
    ]
    cached = {weights.name: cached_published(weights, cache) for weights in listed}
    if as_json:
        print_json([_row(weights, cached[weights.name]) for weights in listed])
        return
    if not listed:
        raise ConfigError(f"no published weights with {' '.join(words or ())!r}; boxwright weights list shows all")
    _print_groups(listed, {name for name, path in cached.items() if path is not None})
    if not backbones:
        suggest("predict", "IMAGES", "--model", next((entry.name for entry in listed if entry.opens), "NAME"))


def _print_groups(listed: list[PublishedWeights], cached: set[str]) -> None:
    """Print weights below their publishers, data and licenses, in at most 80 columns."""
    widest = max(len(weights.name) for weights in listed)
    print(f"  {'name':{widest}}    AP       MB")
    for (publisher, data, license), group in groupby(
        listed, lambda entry: (entry.publisher, entry.data, entry.license)
    ):
        print(f"{publisher}; {', then '.join(data)}; license: {license}")
        for weights in group:
            # Precision of masks, or on other data, is not to be compared with the others.
            ap = "" if weights.ap is None else f"{weights.ap:.1f}{'*' if weights.ap_note else ' '}"
            size = f"{weights.size / 1e6:.1f}" if weights.size is not None else ""
            unopened = weights.holds == "detector" and not weights.opens
            here = "cached" if weights.name in cached else "not yet" if unopened else ""
            mark = "refused" if weights.refused else here
            print(f"  {weights.name:{widest}}  {ap:>5}  {size:>6}  {mark}".rstrip())
    print(
        "\nAP: by their authors, on COCO's val2017; *: of what `weights info` says\n"
        "license: of the weights, as their publisher states it; info has the data's terms\n"
        "not yet: of a kind that Boxwright does not open yet\n"
        "refused: by its license, which info states"
    )


def _searched(weights: PublishedWeights) -> str:
    return " ".join([weights.name, weights.publisher, weights.license, weights.file, *weights.data]).lower()


def _row(weights: PublishedWeights, path: Path | None) -> dict[str, Any]:
    return {**asdict(weights), "opens": weights.opens, "cached": None if path is None else str(path)}


def _named(name: str) -> PublishedWeights:
    from boxwright.weights.published import explain_unknown, find_published

    weights = find_published(name)
    if weights is None:
        raise ConfigError(explain_unknown(name, "no published weights have this name"))
    return weights


@app.command("info", cls=PlainCommand)
@with_settings
def info_command(name: Name, *, as_json: JsonOption = False, cache: Cache = None) -> None:
    """Say everything that is known of published weights: file, digest, license, data, terms, and what to type."""
    from boxwright.weights.fetch import cached_published

    weights = _named(name)
    path = cached_published(weights, cache)
    if as_json:
        print_json(_row(weights, path))
        return
    for title, text in _facts(weights).items():
        if text:
            print(f"{title:10}  {text}")
    print(f"{'cached':10}  {path or 'no'}")
    if weights.opens:
        suggest("predict", "IMAGES", "--model", name)
    if weights.holds == "detector" and weights.presets:
        suggest("train", "DATA", "--model", name, when="to fine-tune it")
    if weights.holds == "backbone" and weights.presets:
        suggest("train", "DATA", "--model", weights.presets[0], "--weights", name, when="to start from it")


def _facts(weights: PublishedWeights) -> dict[str, str]:
    digest = (
        weights.sha256 if weights.whole_digest else f"{weights.sha256}…, as its name says" if weights.sha256 else ""
    )
    ap = "" if weights.ap is None else f"{weights.ap:g} by its authors, {weights.ap_note or 'on COCO val2017'}"
    opens = weights.opens or weights.holds == "backbone"
    return {
        "name": weights.name,
        "holds": f"a {weights.holds}" + ("" if opens else ", of a kind that Boxwright does not open yet"),
        "presets": ", ".join(weights.presets) or ("none; its archive has a configuration" if weights.opens else ""),
        "changed by": ", ".join(weights.overrides),
        "AP": ap or weights.ap_note,
        "input": weights.input_size,
        "classes": weights.classes,
        "data": ", then ".join(weights.data),
        "license": f"{weights.license} (of the weights), {weights.code_license} (of the code)",
        "terms": weights.terms,
        "publisher": weights.publisher,
        "page": weights.page,
        "file": weights.file + (f", {weights.size:,} bytes" if weights.size is not None else ""),
        "address": weights.address or "none that leads to it directly; see the page",
        "sha256": f"{digest} (stated by {'its ' if weights.digest_by == 'publisher' else ''}{weights.digest_by})"
        if digest
        else "not stated: it is recorded when the file is first fetched",
        "opening": f"checked by {weights.shown}" if weights.shown != "not shown" else "not checked here",
    }


@app.command("fetch", cls=PlainCommand)
@with_settings
def fetch_command(
    name: Name,
    *,
    again: Annotated[
        bool, typer.Option("--again", help="Fetch a file that is there, too, and accept what is published now.")
    ] = False,
    cache: Cache = None,
    quiet: QuietOption = False,
) -> None:
    """Fetch published weights into the cache, for a machine without a connection or a first run without waiting."""
    from boxwright.weights.fetch import fetch_published
    from boxwright.weights.fetching import Fetching

    path = fetch_published(_named(name), Fetching(cache, again=again, console=console if quiet else None))
    console.print(f"{name}: {path}")


@app.command("verify", cls=PlainCommand)
@with_settings
def verify_command(file: Annotated[Path, typer.Argument(help="A file of weights, wherever it came from.")]) -> None:
    """Say which published weights a file is, by its SHA-256; exit with 1 if it is none of them or cannot be checked."""
    from boxwright.weights.digest_records import compute_record
    from boxwright.weights.fetch import identify_published
    from boxwright.weights.fetching import weights_cache
    from boxwright.weights.published import published_weights

    if not is_file(file):
        raise CheckpointError(f"{file}: no such file")
    weights, digest = identify_published(file)
    if weights is not None:
        how = "its SHA-256 agrees" if weights.sha256 else "it was fetched here, and its SHA-256 is not stated"
        console.print(f"{file} is {weights.name} of {weights.publisher}: {how}")
        return
    size = file.stat().st_size
    by_name = next((entry for entry in published_weights() if entry.file == file.name), None)
    alike = by_name or next((entry for entry in published_weights() if entry.size == size), None)
    if alike is None:
        raise CheckpointError(f"{file} is none of the published weights, by its SHA-256, its name or its size")
    shared = f"has the {'size' if by_name is None else 'name'} of {alike.name}"
    if not alike.sha256:
        own = compute_record(weights_cache(), file).sha256
        raise CheckpointError(f"{file} {shared}, whose SHA-256 nobody states: it cannot be checked; its own is {own}")
    raise CheckpointError(
        f"{file} {shared}, but its SHA-256 is {digest}, not {alike.sha256}"
        f"{'' if alike.whole_digest else '…'}: it is damaged, or another file"
    )


@app.command("where", cls=PlainCommand)
@with_settings
def where_command(*, as_json: JsonOption = False, cache: Cache = None) -> None:
    """Print the cache's folder and the files in it."""
    from boxwright.weights.fetch import cached_published
    from boxwright.weights.fetching import weights_cache
    from boxwright.weights.published import published_weights

    folder = cache or weights_cache()
    cached = {weights.name: cached_published(weights, cache) for weights in published_weights()}
    files = {name: path for name, path in cached.items() if path is not None}
    if as_json:
        print_json({"folder": str(folder), "files": {name: str(path) for name, path in files.items()}})
        return
    print(folder)
    for name, path in files.items():
        print(f"  {name}  {path.stat().st_size / 1e6:.1f} MB  {path}")
