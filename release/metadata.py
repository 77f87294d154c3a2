"""What the package's metadata says of the repository, whose address is known to who builds it.

Hatchling runs this (pyproject.toml). BOXWRIGHT_REPOSITORY is the address without a slash at its end, as the release's
workflow sets it. Without it there are no addresses, and links in the readme stay relative.
"""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Any

from hatchling.metadata.plugin.interface import MetadataHookInterface


def absolute_links(text: str, repository: str) -> str:
    """Markdown whose links to files lead to the repository, and whose pictures are those files."""

    def link(match: re.Match[str]) -> str:
        kind = "raw" if match["picture"] else "blob"
        return f"{match['picture']}[{match['text']}]({repository}/{kind}/HEAD/{match['target']})"

    return re.sub(r"(?P<picture>!?)\[(?P<text>[^\]]*)\]\((?!https?:|#)(?P<target>[^)\s]+)\)", link, text)


def addresses(repository: str) -> dict[str, str]:
    """The repository's pages by the names that package indexes show."""
    return {
        "Source": repository,
        "Documentation": f"{repository}/tree/HEAD/docs",
        "Changelog": f"{repository}/blob/HEAD/CHANGELOG.md",
        "Issues": f"{repository}/issues",
        "Security": f"{repository}/security/policy",
    }


class Addresses(MetadataHookInterface):
    """Adds `readme` and `urls` to the metadata."""

    def update(self, metadata: dict[str, Any]) -> None:
        """Add both to `metadata`."""
        repository = os.environ.get("BOXWRIGHT_REPOSITORY", "").rstrip("/")
        readme = (Path(self.root) / "README.md").read_text(encoding="utf-8")
        text = absolute_links(readme, repository) if repository else readme
        metadata["readme"] = {"content-type": "text/markdown", "text": text}
        metadata["urls"] = addresses(repository) if repository else {}
