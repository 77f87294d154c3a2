"""The C of the extension, built to stop at the first access out of bounds and the first undefined operation."""

from __future__ import annotations

import os
import runpy
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
SANITIZERS = "-fsanitize=address,undefined -fno-sanitize-recover=all"
# Runs in a process of its own, into which the sanitizers' library is loaded first: PyTorch's tensors are then surrounded
# by memory that nothing may touch.
PROGRAM = """
import ctypes, sys
from pathlib import Path
import torch
from boxwright.nn.ops import native
from tests.nn.convolutions import SIZES, random_convolution, relative_error
library, level = Path(sys.argv[1]), sys.argv[2]
if level == "too far":
    numbers = torch.zeros(4)
    ctypes.CDLL(str(library)).write_at(ctypes.c_void_p(numbers.data_ptr()), ctypes.c_long(int(sys.argv[3])))
    sys.exit()
extension = native.load_extension(library, level)
assert extension is not None
native.EXTENSION = extension
tried = 0
for threads in (1, 2):
    torch.set_num_threads(threads)
    for height, width in SIZES:
        for ins, outs in ((5, 7), (16, 32), (33, 20)):
            for layout in (torch.contiguous_format, torch.channels_last):
                maps, kernel, bias = random_convolution(height, width, ins=ins, outs=outs)
                maps = maps.contiguous(memory_format=layout)
                exact = torch.nn.functional.conv2d(maps.double(), kernel.double(), bias.double(), padding=1)
                given = [tensor.clone().requires_grad_() for tensor in (maps, kernel, bias)]
                outputs = native.conv_3x3(*given)
                outputs.sum().backward()
                packed = native.conv_3x3_packed(maps, native.packed_kernel(kernel), bias)
                for found in (outputs.detach(), packed):
                    assert relative_error(found, exact) < 1e-4
                    tried += 1
print(tried)
"""
# Weak, as every source is compiled for each level of instructions.
BEYOND = """
__attribute__((visibility("default"), weak)) void write_at(float *numbers, long place) { numbers[place] = 1; }
"""

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(shutil.which("cc") is None or sys.platform != "linux", reason="no C compiler"),
]


def compiles_anything(compiler: str, folder: Path) -> bool:
    source = folder / "empty.c"
    source.write_text("int main(void) { return 0; }\n")
    command = [*compiler.split(), str(source), "-o", str(folder / "empty")]
    return subprocess.run(command, capture_output=True, check=False).returncode == 0


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The extension with sanitizers, and a function that writes where it is told to."""
    pytest.importorskip("hatchling")
    root = tmp_path_factory.mktemp("sanitized")
    compiler = f"{os.environ.get('CC') or 'cc'} {SANITIZERS}"
    if not compiles_anything(compiler, root):
        pytest.skip("this compiler has no sanitizers")
    shutil.copytree(ROOT / "native", root / "native")
    (root / "native" / "beyond.c").write_text(BEYOND)
    (root / "src" / "boxwright").mkdir(parents=True)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("CC", compiler)
        build = runpy.run_path(str(ROOT / "release" / "build_native.py"))
        return Path(build["compile_extension"](root))


def run(library: Path, *words: str) -> subprocess.CompletedProcess[str]:
    found = [
        subprocess.run(["cc", f"-print-file-name={name}"], capture_output=True, text=True, check=True).stdout.strip()
        for name in ("libasan.so", "libubsan.so")
    ]
    environment = {
        **os.environ,
        "LD_PRELOAD": " ".join(found),
        # Python frees nothing at its end, and PyTorch's libraries were built without sanitizers.
        "ASAN_OPTIONS": "detect_leaks=0:detect_odr_violation=0",
        "PYTHONPATH": f"{ROOT / 'src'}:{ROOT}",
        "PYTHONMALLOC": "malloc",
    }
    command = [sys.executable, "-c", PROGRAM, str(library), *words]
    return subprocess.run(command, env=environment, capture_output=True, text=True, check=False)


@pytest.mark.parametrize("level", ["portable", "avx2", "avx512"])
def test_nothing_is_read_or_written_out_of_bounds(library: Path, level: str) -> None:
    from boxwright.nn.ops import native

    levels = ["portable", "avx2", "avx512"]
    if native.EXTENSION is None or levels.index(level) > levels.index(native.EXTENSION.level):
        pytest.skip(f"no extension, or no processor, for {level}")
    done = run(library, level)
    assert done.returncode == 0, done.stderr[-3000:]
    assert int(done.stdout) > 50


def test_a_number_too_far_is_found(library: Path) -> None:
    assert run(library, "too far", "3").returncode == 0
    done = run(library, "too far", "16")
    assert done.returncode != 0
    assert "AddressSanitizer: heap-buffer-overflow" in done.stderr
