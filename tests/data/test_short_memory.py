"""Pictures of every format, decoded with less memory than they take: what is short is said, never that they are damaged."""

from __future__ import annotations

import io
import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

SIDE = 1500
# In a process of its own: what others have freed would be used again, without asking for more.
PROGRAM = """
import json, os, resource, sys
from pathlib import Path
from PIL import Image
from boxwright.base.errors import BoxwrightError
from boxwright.data.image_io import decode_image

small, large = (Path(name).read_bytes() for name in sys.argv[1:3])
decode_image(small, "small")
for mib in map(int, sys.argv[3:]):
    reading, writing = os.pipe()
    if not os.fork():
        used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
        resource.setrlimit(resource.RLIMIT_AS, (used + mib * 2**20,) * 2)
        try:
            decode_image(large, "large")
            outcome = "decoded"
        except BaseException as error:
            outcome = f"{type(error).__name__}: {error}"
        os.write(writing, outcome.encode())
        os._exit(0)
    os.close(writing)
    print(json.dumps(os.read(reading, 1000).decode()), flush=True)
    os.wait()
"""
KINDS = {
    "webp": ("WEBP", "RGB", {"method": 0}),
    "webp-lossless": ("WEBP", "RGBA", {"lossless": True, "quality": 0, "method": 0}),
    "jpeg-progressive": ("JPEG", "RGB", {"progressive": True}),
    "avif": ("AVIF", "RGB", {"speed": 10}),
    "jpeg": ("JPEG", "RGB", {}),
    "jpeg-cmyk": ("JPEG", "CMYK", {}),
    "png": ("PNG", "RGB", {}),
    "gif": ("GIF", "P", {}),
    "tiff": ("TIFF", "RGB", {"compression": "tiff_lzw"}),
    "tiff-jpeg": ("TIFF", "RGB", {"compression": "jpeg"}),
    "bmp": ("BMP", "RGB", {}),
    "ppm": ("PPM", "RGB", {}),
}


def write(path: Path, kind: str, side: int) -> Path:
    pixels = np.zeros((side, side, 3), np.uint8)
    pixels[::7], pixels[:, ::5, 1] = 200, 99
    format, mode, options = KINDS[kind]
    file = io.BytesIO()
    Image.fromarray(pixels).convert(mode).save(file, format, **options)
    path.write_bytes(file.getvalue())
    return path


@pytest.mark.skipif(sys.platform != "linux", reason="limits of address space, as Linux keeps them")
@pytest.mark.slow_except("webp", "webp-lossless", "jpeg-progressive")
@pytest.mark.parametrize("kind", KINDS)
def test_too_little_memory_is_never_damage(kind: str, tmp_path: Path) -> None:
    files = [write(tmp_path / "small", kind, 8), write(tmp_path / "large", kind, SIDE)]
    limits = [1, 4, 8, 11, 14, 18, 24, 30, 400]
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, *map(str, files), *map(str, limits)],
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    outcomes = [json.loads(line) for line in done.stdout.splitlines()]
    assert len(outcomes) == len(limits), done.stderr
    assert set(outcomes) == {"decoded", "MemoryError: large: not enough memory to decode the image"}
    assert outcomes[-1] == "decoded"
