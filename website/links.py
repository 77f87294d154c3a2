"""Links: those of Markdown led to the site's pages, and those of a built site checked.

`python -m website.links SITE` ends with 1 if a link or an anchor of a built site leads nowhere.
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Iterator, Mapping
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

_LINK = re.compile(r"(?P<text>!?\[[^\]]*\])\((?!https?:|#|mailto:)(?P<path>[^)#\s]+)(?P<anchor>#[^)\s]*)?\)")
_FENCE = re.compile(r"(^```.*?^```$)", re.MULTILINE | re.DOTALL)


def led_to_the_site(text: str, file: Path, root: Path, pages: Mapping[str, str]) -> tuple[str, list[Path]]:
    """Return a page whose links lead to where its targets are in the site, and the files that are to be copied there.

    Args:
        text: The page's Markdown.
        file: The file that it is from, which its links are relative to.
        root: The repository.
        pages: Path in the repository to name in the site. A file that is none of these keeps its path in `root`,
            without `docs`; a folder's link becomes its text.
    """
    files: list[Path] = []

    def link(match: re.Match[str]) -> str:
        target = Path(os.path.normpath(file.parent / unquote(match["path"])))
        name = str(target.relative_to(root))
        if name in pages:
            return f"{match['text']}({pages[name]}{match['anchor'] or ''})"
        if target.is_dir():
            return match["text"].strip("[]")
        files.append(target)
        return f"{match['text']}({name.removeprefix('docs/')})"

    parts = _FENCE.split(text)
    return "".join(part if part.startswith("```") else _LINK.sub(link, part) for part in parts), files


class _Page(HTMLParser):
    """What a page links to, and the places in it that can be linked to."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.links: list[str] = []
        self.places: set[str] = set()
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        for name, value in attrs:
            if name in ("id", "name") and value:
                self.places.add(value)
            if (name == "href" or (name == "src" and tag != "script")) and value:
                self.links.append(value)


def broken_links(site: Path) -> Iterator[str]:
    """Yield the links of a built site that lead to no file or place of it; other sites' are not followed."""
    pages = {path: _Page(path.read_text(encoding="utf-8")) for path in sorted(site.rglob("*.html"))}
    for path, page in pages.items():
        if path.name == "404.html":  # its links are absolute
            continue
        for link in dict.fromkeys(page.links):
            parts = urlsplit(link)
            if parts.scheme or parts.netloc:
                continue
            target = path if not parts.path else Path(os.path.normpath(path.parent / unquote(parts.path)))
            target = target / "index.html" if target.is_dir() else target
            if not target.is_file():
                yield f"{path.relative_to(site)}: {link}: no such file"
            elif parts.fragment and target in pages and unquote(parts.fragment) not in pages[target].places:
                yield f"{path.relative_to(site)}: {link}: no such place"


if __name__ == "__main__":
    found = list(broken_links(Path(sys.argv[1])))
    print("\n".join(found) or "all links lead somewhere")
    sys.exit(bool(found))
