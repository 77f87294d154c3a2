"""What must hold before a release: `make release-check` runs it, and leaves sdist, wheel and SBOM in `dist`.

Each check prints a line; the program ends with 1 if one failed. A Python that is neither here nor to be had is named
and passed over.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
import time
import urllib.request
import zipfile
from collections.abc import Callable, Container, Iterable
from pathlib import Path

ROOT = Path(__file__).parent.parent
DIST = ROOT / "dist"
TOOLS = Path(sys.executable).parent
# The tests that run what is written, and what they are made of.
PAGES = ("tests/test_readme.py", "tests/test_docs_blocks.py", "tests/test_docs_python.py")
DOCUMENTED = (
    "README.md",
    "*.md",
    "Makefile",
    "pyproject.toml",
    "docs",
    "tests",
    "benchmarks",
    "website",
    "notebooks",
    "LICENSE",
)
EXTRAS = "onnx,serve,video,track"
MOST_WHEEL, MOST_SDIST = 6_000_000, 9_000_000
# What may be published, beside metadata: files of these kinds in the package, and what stands at the top of the sdist.
PACKAGED = (
    *(".py", ".typed", ".config", ".pbtxt", ".toml", ".json", ".md", ".html", ".css", ".js", ".svg", ".jpg"),
    *(".safetensors", "LICENSE"),
)
IN_SDIST = (
    *(".ci", ".dockerignore", ".github", ".gitignore", "CHANGELOG.md", "CITATION.cff", "CODE_OF_CONDUCT.md"),
    *("CONTRIBUTING.md", "LICENSE", "LICENSES", "Makefile", "README.md", "REUSE.toml", "SECURITY.md", "benchmarks"),
    *("docker", "docs", "native", "notebooks", "pyproject.toml", "release", "src", "tests", "website"),
)


class CheckError(Exception):
    """A check that did not hold."""


def run(*command: object, cwd: Path = ROOT, **environment: str) -> str:
    """Return what a command prints; one that fails ends the check, with its output's end."""
    done = subprocess.run(
        [str(word) for word in command],
        cwd=cwd,
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        check=False,
    )
    output = done.stdout + done.stderr
    if done.returncode:
        raise CheckError("\n".join([" ".join(map(str, command)), *output.strip().splitlines()[-30:]]))
    return output


def the(pattern: str) -> Path:
    """Return the one file of `dist` that a pattern names."""
    (path,) = DIST.glob(pattern)
    return path


def unwanted_in_wheel(names: Iterable[str], tracked: Container[str]) -> list[str]:
    """Return what a wheel may not hold: what is not tracked, and not the compiled extension or metadata."""
    return [
        name
        for name in names
        if not re.fullmatch(r"boxwright-[^/]+\.dist-info/.+|boxwright/_native\.so", name)
        and not (f"src/{name}" in tracked and name.startswith("boxwright/") and name.endswith(PACKAGED))
    ]


def unwanted_in_sdist(names: Iterable[str], tracked: Container[str]) -> list[str]:
    """Return what an sdist may not hold, of paths below its folder; hidden files of the package are never wanted."""
    return [
        name
        for name in names
        if name != "PKG-INFO"
        and (
            name not in tracked
            or name.partition("/")[0] not in IN_SDIST
            or (name.startswith("src/") and not name.endswith(PACKAGED))
        )
    ]


def unpinned(root: Path) -> list[str]:
    """Return the actions of workflows that no hash of a commit names, and the base images that no digest names."""
    found = []
    for path in sorted((root / ".github" / "workflows").glob("*.yml")):
        named = re.findall(r"^\s*(?:- )?uses: *(\S+)", path.read_text(), re.M)
        found += [f"{path.name}: {name}" for name in named if not re.search(r"@[0-9a-f]{40}$", name)]
    for path in sorted((root / "docker").glob("*.Dockerfile")):
        named = re.findall(r"^FROM +(?:--\S+ +)*(\S+)", path.read_text(), re.M)
        found += [f"{path.name}: {name}" for name in named if not re.search(r"@sha256:[0-9a-f]{64}$", name)]
    return found


def pins() -> str:
    """Check that no action or base image can be replaced under its name; a release ends here if one can."""
    if open_ones := unpinned(ROOT):
        raise CheckError("not pinned by digest: " + "; ".join(open_ones))
    return "each action by a commit's hash, each base image by a digest"


def build() -> str:
    """Build the sdist, and from it the wheel, whose extension must run on older systems than this one.

    With the builders of this environment, which hashes name, rather than with the newest of an environment of its own.
    """
    shutil.rmtree(DIST, ignore_errors=True)
    words = ("build", "--no-build-isolation", "--python", sys.executable, "--out-dir", DIST, ROOT)
    run(TOOLS / "uv", *words, PYTHONDONTWRITEBYTECODE="1")
    wheel, path = the("*.whl"), os.pathsep.join([str(TOOLS), os.environ["PATH"]])
    run(TOOLS / "auditwheel", "repair", "--plat", "auto", "--wheel-dir", DIST, wheel, PATH=path)
    wheel.unlink()
    (DIST / ".gitignore").unlink(missing_ok=True)  # uv's own, which would be uploaded
    return ", ".join(f"{path.name} ({path.stat().st_size / 1e6:.2f} MB)" for path in sorted(DIST.iterdir()))


def contents() -> str:
    """Check sizes, and what must and must not be inside."""
    for path, most in ((the("*.whl"), MOST_WHEEL), (the("*.tar.gz"), MOST_SDIST)):
        if path.stat().st_size > most:
            raise CheckError(f"{path.name} has {path.stat().st_size} bytes, more than {most}")
    # Auditwheel adds entries of folders.
    inside = [name for name in zipfile.ZipFile(the("*.whl")).namelist() if not name.endswith("/")]
    presets = [name for name in inside if name.startswith("boxwright/presets/")]
    wanted = {f"boxwright/presets/{path.name}" for path in (ROOT / "src/boxwright/presets").glob("[!_]*.*")}
    if missing := wanted - set(presets):
        raise CheckError(f"the wheel lacks {sorted(missing)}")
    shipped = [ROOT / "src/boxwright/assets" / name for name in ("blood_cells", "demo")]
    files = {str(path.relative_to(ROOT / "src")) for folder in shipped for path in folder.rglob("*") if path.is_file()}
    if missing := files - set(inside):
        raise CheckError(f"the wheel lacks {len(missing)} files of the demo, as {min(missing)}")
    if "boxwright/_native.so" not in inside:
        raise CheckError("the wheel lacks the native extension: is a C compiler here?")
    tracked = set(run("git", "ls-files", "-z").split("\0"))
    if unwanted := unwanted_in_wheel(inside, tracked):
        raise CheckError(f"the wheel has {', '.join(sorted(unwanted)[:9])} too")
    with tarfile.open(the("*.tar.gz")) as archive:
        files_inside = [name.partition("/")[2] for name in archive.getnames() if not archive.getmember(name).isdir()]
        if unwanted := unwanted_in_sdist(files_inside, tracked):
            raise CheckError(f"the sdist has {', '.join(sorted(unwanted)[:9])} too")
        if recordings := [name for name in archive.getnames() if "/tests/golden/" in name]:
            raise CheckError(f"the sdist has {len(recordings)} recordings, as {recordings[0]}")
    return f"{len(presets)} presets and label maps"


def version() -> str:
    """Check that version, tag and changelog agree, where BOXWRIGHT_TAG names a tag."""
    built = the("*.whl").name.split("-")[1]
    tag = os.environ.get("BOXWRIGHT_TAG", "")
    if not tag:
        dated = re.search(r"^## \[(\d[^\]]*)\] - ", (ROOT / "CHANGELOG.md").read_text(), re.M)
        return f"{built}, without a tag; the changelog's newest version is {dated[1] if dated else 'not dated'}"
    if tag != f"v{built}":
        raise CheckError(f"the tag is {tag}, the wheel's version {built}")
    if not re.search(rf"^## \[{re.escape(built)}\] - \d{{4}}-\d\d-\d\d$", (ROOT / "CHANGELOG.md").read_text(), re.M):
        raise CheckError(f"CHANGELOG.md has no line '## [{built}] - YYYY-MM-DD'")
    if not os.environ.get("BOXWRIGHT_REPOSITORY"):
        raise CheckError("BOXWRIGHT_REPOSITORY does not say where the repository is")
    return built


def metadata() -> str:
    """Check the metadata as package indexes do."""
    run(TOOLS / "twine", "check", "--strict", *DIST.iterdir())
    return "twine"


def licenses() -> str:
    """Check that each file's license and holder are stated."""
    run(TOOLS / "reuse", "lint")
    return "reuse"


def workflows() -> str:
    """Check workflows, issue forms and the citation file, without a network."""
    host = ROOT / ".github"
    schemas = {
        "github-workflows": sorted((host / "workflows").glob("*.yml")),
        "github-issue-forms": [path for path in (host / "ISSUE_TEMPLATE").glob("*.yml") if path.stem != "config"],
        "github-issue-config": [host / "ISSUE_TEMPLATE" / "config.yml"],
        "dependabot": [host / "dependabot.yml"],
        "citation-file-format": [ROOT / "CITATION.cff"],
    }
    for schema, paths in schemas.items():
        run(TOOLS / "check-jsonschema", "--builtin-schema", f"vendor.{schema}", *paths)
    run(TOOLS / "zizmor", "--offline", "--no-progress", host)
    return "check-jsonschema, zizmor"


def images() -> str:
    """Check the Dockerfiles; no image is built."""
    run(TOOLS / "hadolint", *sorted((ROOT / "docker").glob("*.Dockerfile")))
    return "hadolint; not built"


def environment(folder: Path, python: str, *packages: object) -> Path | None:
    """Return a fresh environment's interpreter, or None where that Python is not to be had."""
    others = sorted(Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv")).glob("versions/*/bin"))
    path = os.pathsep.join([*map(str, reversed(others)), os.environ["PATH"]])
    try:
        run(TOOLS / "uv", "venv", "--quiet", "--no-project", "--python", python, folder, cwd=folder.parent, PATH=path)
    except CheckError:
        return None
    run(TOOLS / "uv", "pip", "install", "--quiet", *packages, cwd=folder.parent, VIRTUAL_ENV=str(folder))
    return folder / "bin" / "python"


def tour(python: str) -> str:
    """Take a stranger's tour of the wheel in a fresh environment."""
    with tempfile.TemporaryDirectory() as name:
        there = Path(name)
        interpreter = environment(there / "env", python, f"{the('*.whl')}[onnx]", "pytest", "pandas", "supervision")
        if interpreter is None:
            return "not to be had here: not toured"
        shutil.copy(ROOT / "tests" / "wheel" / "tour.py", there)
        said = run(
            *(interpreter, "-m", "pytest", "-q", "-p", "no:cacheprovider", "tour.py"),
            cwd=there,
            OMP_NUM_THREADS="1",
            BOXWRIGHT_CHECKOUT=str(ROOT),
        )
        return said.strip().splitlines()[-1].strip("= ")


def bill_of_materials() -> str:
    """Write what a fresh installation consists of, as CycloneDX."""
    with tempfile.TemporaryDirectory() as name:
        interpreter = environment(Path(name) / "env", sys.executable, the("*.whl"))
        target = DIST / f"{the('*.whl').name.split('-py3')[0]}.cdx.json"
        options = ("--output-reproducible", "--of", "JSON", "--output-file", target)
        run(TOOLS / "cyclonedx-py", "environment", *options, interpreter)
        return target.name


def answer(address: str, data: bytes | None = None) -> bytes:
    """Return what a server that is starting answers; two minutes are waited for it."""
    until = time.monotonic() + 120
    while True:
        try:
            return bytes(urllib.request.urlopen(address, data, timeout=10).read())
        except OSError as error:
            if time.monotonic() > until:
                raise CheckError(f"{address}: {error}") from error
            time.sleep(0.5)


def page(address: str) -> int:
    """Return how many files the server's page consists of; each one that it names is asked for."""
    named, seen = {""}, set[str]()
    while left := named - seen:
        name = left.pop()
        seen.add(name)
        text = answer(f"{address}/{name}").decode()
        named |= set(re.findall(r'(?:src|href)="(page/[^"]+)"', text))
        named |= {f"page/{one}" for one in re.findall(r'from "\./([^"]+)"', text)}
    return len(seen)


def serving() -> str:
    """Serve a file with what the image for serving installs, which has no PyTorch."""
    with tempfile.TemporaryDirectory() as name:
        hashed = ("--require-hashes", "--no-deps", "-r", ROOT / "release" / "serve.txt")
        interpreter = environment(Path(name) / "env", sys.executable, *hashed)
        there = {"VIRTUAL_ENV": str(Path(name) / "env")}
        run(TOOLS / "uv", "pip", "install", "--quiet", "--no-deps", the("*.whl"), cwd=Path(name), **there)
        file = ROOT / "tests" / "kept" / "detector.onnx"
        command = [str(interpreter), "-m", "boxwright", "serve", str(file), "--port", "8597"]
        server = subprocess.Popen(command, cwd=name, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        try:
            answer("http://127.0.0.1:8597/readyz")
            answer("http://127.0.0.1:8597/detect", (ROOT / "docs" / "detections.jpg").read_bytes())
            files = page("http://127.0.0.1:8597")
        finally:
            server.terminate()
            server.wait()
    return f"serves, detects and shows its page of {files} files without PyTorch"


def documentation() -> str:
    """Run every command and example of the README and the documentation against the wheel, outside the checkout."""
    with tempfile.TemporaryDirectory() as name:
        there = Path(name)
        wheel = f"{the('*.whl')}[{EXTRAS}]"
        group = ("--project", ROOT, "--group", f"{ROOT / 'pyproject.toml'}:dev")
        interpreter = environment(there / "env", sys.executable, *group, wheel)
        if interpreter is None:
            raise CheckError("no environment could be made")
        tracked = run("git", "ls-files", "-z", *DOCUMENTED).split("\0")
        for path in filter(None, tracked):
            (there / path).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(ROOT / path, there / path)
        script = f"import boxwright, sys; sys.exit(boxwright.__file__.startswith({str(ROOT)!r}))"
        run(interpreter, "-c", script, cwd=there)
        (there / "tmp").mkdir()
        words = ("-m", "pytest", "-q", "-p", "no:cacheprovider", *PAGES)
        said = run(interpreter, *words, cwd=there, OMP_NUM_THREADS="1", TMPDIR=str(there / "tmp"))
        return said.strip().splitlines()[-1].strip("= ")


def main() -> int:
    """Run the checks; return 1 if one failed."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--python", nargs="*", default=["3.11", "3.12", "3.13", "3.14"], help="versions to tour with")
    versions = parser.parse_args().python
    checks: dict[str, Callable[[], str]] = {
        "build": build,
        "contents": contents,
        "version": version,
        "metadata": metadata,
        "licenses": licenses,
        "workflows": workflows,
        "Dockerfiles": images,
        "pins": pins,
        "serving": serving,
        "documentation": documentation,
        **{f"tour, Python {python}": lambda python=python: tour(python) for python in versions},
        "SBOM": bill_of_materials,
    }
    failures = 0
    for name, check in checks.items():
        try:
            print(f"ok      {name}: {check()}", flush=True)
        except CheckError as failure:
            failures += 1
            print(f"FAILED  {name}: {failure}", flush=True)
            if check is build:
                return 1
    return min(failures, 1)


if __name__ == "__main__":
    sys.exit(main())
