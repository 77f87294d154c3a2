"""Whether the search of a built site finds what people look for: `python -m website.search SITE` ends with 1 if not."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path

# What people type who do not know this project's words for it.
SOUGHT = (
    "custom dataset",
    "out of memory",
    "early stopping",
    "yolo",
    "mAP 0",
    "overfitting",
    "resume",
    "nan",
    "confidence threshold",
    "small objects",
    "roboflow",
    "commercially",
)


def unfound(site: Path) -> Iterator[str]:
    """Yield the sought words that no section of the site's index holds together."""
    sections = [
        f"{item['title']} {item['text']}".lower()
        for item in json.loads((site / "search.json").read_text(encoding="utf-8"))["items"]
    ]
    for words in SOUGHT:
        if not any(words.lower() in section for section in sections):
            yield words


if __name__ == "__main__":
    missing = list(unfound(Path(sys.argv[1])))
    print("\n".join(f"the search does not find: {words}" for words in missing) or "the search finds what is sought")
    sys.exit(bool(missing))
