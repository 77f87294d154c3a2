"""Upper limits on what a file may ask for, in one table.

A limit keeps a small file, broken or malicious, from exhausting memory or time. Each is far beyond real use, and is
raised by the environment variable that its error names.
"""

from __future__ import annotations

import os
from dataclasses import dataclass

from boxwright.base.errors import ConfigError
from boxwright.base.text import to_number


@dataclass(frozen=True)
class Limit:
    """One limit.

    Attributes:
        name: The environment variable is `BOXWRIGHT_MAX_` and this name, in capitals.
    """

    name: str
    default: int
    what: str

    @property
    def variable(self) -> str:
        """The environment variable that overrides the limit."""
        return f"BOXWRIGHT_MAX_{self.name.upper()}"

    @property
    def value(self) -> int:
        """The current limit; ConfigError if the variable is not a number of 1 or more."""
        text = os.environ.get(self.variable)
        if not text:
            return self.default
        try:
            number = to_number(text)
        except ValueError:
            number = 0.0
        if not 1 <= number < 2**63:
            raise ConfigError(f"{self.variable}: expected a number of 1 or more, found {text!r}")
        return int(number)

    def exceeded(self, amount: float) -> str:
        """Return the rest of a sentence that names the limit and its variable; empty if the amount is allowed."""
        most = self.value
        if amount <= most:
            return ""
        return f"{amount:,} {self.what} are more than the {most:,} allowed ({self.variable} raises that)"


IMAGE_PIXELS = Limit("image_pixels", 100_000_000, "pixels of an image")
MASK_PIXELS = Limit("mask_pixels", 2_000_000_000, "pixels of an image's masks together")
MASK_BOUNDARY = Limit("mask_boundary", 10_000_000, "pixels along a polygon's boundary")
SURFACE_POINTS = Limit("surface_points", 10_000_000, "DensePose points of an image, with their padding,")
COORDINATE = Limit("coordinate", 10_000_000, "pixels from the origin")
FILE_BYTES = Limit("file_bytes", 20_000_000_000, "bytes of a file that is read whole")
RECORD_BYTES = Limit("record_bytes", 2_000_000_000, "bytes of a record")
PICTURE_SIDE = Limit("picture_side", 4096, "pixels per side of a drawn picture")
CONFIG_NESTING = Limit("config_nesting", 64, "levels of nesting")
CONFIG_VALUES = Limit("config_values", 1_000_000, "values in a configuration or label map")
INDEX_BYTES = Limit("index_bytes", 500_000_000, "bytes of keys and values in a checkpoint's index")
CHECKPOINT_BYTES = Limit("checkpoint_bytes", 4_000_000_000, "bytes of a checkpoint, a graph or an unpacked archive")
ARCHIVE_FILES = Limit("archive_files", 10_000, "files in an archive")
DATA_FILES = Limit("data_files", 2_000_000, "files in an archive of data")
DATA_BYTES = Limit("data_bytes", 200_000_000_000, "bytes of an unpacked archive of data")
PATTERN_SECONDS = Limit("pattern_seconds", 5, "seconds of pattern matching")
DOWNLOAD_BYTES = Limit("download_bytes", 200_000_000, "bytes of an image from a web server")
DOWNLOAD_SECONDS = Limit("download_seconds", 60, "seconds of fetching an image")
REMOTE_CACHE_BYTES = Limit("remote_cache_bytes", 20_000_000_000, "bytes of the cache of files at addresses")
TRIAL_BYTES = Limit("trial_bytes", 8_000_000_000, "bytes of memory for opening an exported file")
TRIAL_SECONDS = Limit("trial_seconds", 120, "seconds of opening an exported file")

# In the order of the page that documents them, docs/reliability.md.
LIMITS = tuple(limit for limit in list(globals().values()) if isinstance(limit, Limit))
