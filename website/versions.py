"""One folder from the sites of several versions: `python -m website.versions FOLDER 0.1.0=SITE 0.2.0=SITE …`.

Each version keeps its pages below its name; the folder's own page leads to the newest release, as does `latest`.
`versions.json` lists them for the theme, in the form of mike, which other tools for Markdown sites read too.
"""

from __future__ import annotations

import json
import shutil
import sys
from pathlib import Path

from packaging.version import InvalidVersion, Version

_NEWEST = """<!doctype html>
<html lang="en">
<meta charset="utf-8">
<title>Boxwright</title>
<meta http-equiv="refresh" content="0; url={where}">
<link rel="canonical" href="{where}">
<p>The documentation of <a href="{where}">version {version}</a>.</p>
</html>
"""


def publish(target: Path, sites: dict[str, Path]) -> None:
    """Write a folder with the sites of versions; it is emptied first.

    Args:
        sites: A built site by its version, as `0.1.0`.

    Raises:
        SystemExit: If there is none, one is no version, or one is not built.
    """
    if not sites:
        raise SystemExit("no site of any version is named")
    for name, site in sites.items():
        if not (site / "index.html").is_file():
            raise SystemExit(f"{name}: {site} has no index.html; run `make site` there")
    ordered = sorted(sites, key=_version, reverse=True)
    newest = next((name for name in ordered if not _version(name).is_prerelease), ordered[0])
    shutil.rmtree(target, ignore_errors=True)
    target.mkdir(parents=True)
    for name, site in sites.items():
        shutil.copytree(site, target / name)
    rows = [{"version": name, "title": name, "aliases": ["latest"] if name == newest else []} for name in ordered]
    (target / "versions.json").write_text(json.dumps(rows, indent=1) + "\n", encoding="utf-8")
    (target / "latest").mkdir()
    for page, where in (("index.html", f"{newest}/index.html"), ("latest/index.html", f"../{newest}/index.html")):
        (target / page).write_text(_NEWEST.format(where=where, version=newest), encoding="utf-8")


def _version(name: str) -> Version:
    try:
        return Version(name)
    except InvalidVersion:
        raise SystemExit(f"{name!r} is no version") from None


def main(words: list[str]) -> None:
    """Publish the sites that the words name."""
    folder, *pairs = words
    publish(Path(folder), {name: Path(site) for name, _, site in (pair.partition("=") for pair in pairs)})


if __name__ == "__main__":
    main(sys.argv[1:])
