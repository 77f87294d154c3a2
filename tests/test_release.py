"""What releases are made of, as far as it can be seen without building them; `make release-check` builds them."""

from __future__ import annotations

import ctypes
import io
import re
import runpy
import shutil
import subprocess
import tomllib
import zipfile
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import yaml
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from boxwright.nn.ops import native

ROOT = Path(__file__).parent.parent
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
WORKFLOWS = sorted((ROOT / ".github" / "workflows").glob("*.yml"))
FOLDERS = ("benchmarks", "docker", "docs", "native", "notebooks", "release", "src", "tests", "website")
BUILD = [ROOT / "Makefile", ROOT / ".ci" / "run", ROOT / "pyproject.toml", *WORKFLOWS]


def _hook(name: str) -> dict[str, Any]:
    """Return the names of a file in `release`, which is no package."""
    pytest.importorskip("hatchling")
    return runpy.run_path(str(ROOT / "release" / name))


def test_the_package_leaves_the_wheel_below_its_limit() -> None:
    """The wheel compresses the same files; `make release-check` holds the built one to the limit."""
    limit = runpy.run_path(str(ROOT / "release" / "check.py"))["MOST_WHEEL"]
    assert limit == 6_000_000
    content = io.BytesIO()
    with zipfile.ZipFile(content, "w", zipfile.ZIP_DEFLATED) as wheel:
        for path in (ROOT / "src" / "boxwright").rglob("*"):
            if path.is_file() and "__pycache__" not in path.parts:
                wheel.write(path, path.relative_to(ROOT / "src"))
    assert 3_000_000 < len(content.getvalue()) < limit


def test_links_of_the_readme_lead_to_the_repository() -> None:
    absolute = _hook("metadata.py")["absolute_links"]
    text = "[a](docs/a.md#b) ![c](docs/c.jpg) [d](https://e.example/f) [g](#h)"
    assert absolute(text, "https://host.example/us/it") == (
        "[a](https://host.example/us/it/blob/HEAD/docs/a.md#b) ![c](https://host.example/us/it/raw/HEAD/docs/c.jpg) "
        "[d](https://e.example/f) [g](#h)"
    )


def _built(root: Path) -> tuple[dict[str, Any], list[str]]:
    """Return what a wheel's build is told in a tree, and the warnings."""
    told: dict[str, Any] = {"artifacts": [], "pure_python": True}
    warnings: list[str] = []
    hook = _hook("build_native.py")["NativeExtension"]
    app = SimpleNamespace(display_warning=warnings.append)
    hook(str(root), {}, None, None, str(root), "wheel", app).initialize("standard", told)
    return told, warnings


def test_without_a_compiler_a_wheel_is_pure_and_one_line_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shutil.copytree(ROOT / "native", tmp_path / "native")
    older = tmp_path / "src" / "boxwright" / "_native.so"
    older.parent.mkdir(parents=True)
    for compiler, reason in (("no-such-compiler", "No such file or directory"), ("false", "it ended with 1")):
        older.touch()
        monkeypatch.setenv("CC", compiler)
        told, warnings = _built(tmp_path)
        assert told == {"artifacts": [], "pure_python": True}
        assert warnings == [f"no native extension, PyTorch's operators compute: {compiler}: {reason}"]
        assert not older.exists()


@pytest.mark.skipif(shutil.which("cc") is None, reason="no C compiler")
def test_with_a_compiler_a_wheel_names_its_platform_and_no_python(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("CC", raising=False)
    (tmp_path / "native").mkdir()
    shutil.copy(ROOT / "native" / "level.c", tmp_path / "native")
    library = tmp_path / "src" / "boxwright" / "_native.so"
    library.parent.mkdir(parents=True)
    told, warnings = _built(tmp_path)
    assert not warnings
    assert told["artifacts"] == ["src/boxwright/_native.so"]
    assert not told["pure_python"]
    assert re.fullmatch(r"py3-none-[a-z0-9_]+", told["tag"])
    assert ctypes.CDLL(str(library)).boxwright_interface() == native._INTERFACE


def test_the_sources_in_c_and_their_callers_have_the_same_constants() -> None:
    sources = "".join(path.read_text() for path in sorted((ROOT / "native").iterdir()))
    constants = {name: int(number) for name, number in re.findall(r"\b([A-Z]+) = (\d+)\b", sources)}
    assert constants["PANEL"] == native._PANEL
    assert constants["OUT"] == native._OUT
    assert f"boxwright_interface(void) {{ return {native._INTERFACE}; }}" in sources


def test_the_image_that_serves_asks_for_the_same_versions() -> None:
    ours = [*PROJECT["dependencies"], *PROJECT["optional-dependencies"]["serve"]]
    lines = [line for line in (ROOT / "docker" / "serve.txt").read_text().splitlines() if not line.startswith("#")]
    assert {str(Requirement(line)) for line in lines} <= {str(Requirement(line)) for line in ours}


def test_every_extra_is_documented() -> None:
    rows = re.findall(r"^\| (`[^|]+`) \|", (ROOT / "docs" / "install.md").read_text(), re.MULTILINE)
    named = {name for row in rows for name in re.findall(r"`([^`]+)`", row)}
    assert named == set(PROJECT["optional-dependencies"])


def test_classifiers_are_the_versions_that_the_workflow_tests() -> None:
    matrix = yaml.safe_load((ROOT / ".github" / "workflows" / "ci.yml").read_text())["jobs"]["ci"]["strategy"]["matrix"]
    named = [line.rpartition(" ")[2] for line in PROJECT["classifiers"] if re.search(r":: 3\.\d+$", line)]
    assert matrix["python"] == named


@pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: str(path.stem))
def test_workflows_run_targets_that_are_there_and_may_do_little(path: Path) -> None:
    workflow = yaml.safe_load(path.read_text())
    assert workflow["permissions"] == {}
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    for job in workflow["jobs"].values():
        assert job["timeout-minutes"]
        named = set(job.get("strategy", {}).get("matrix", {}).get("target", []))
        named |= {
            target for step in job["steps"] for target in re.findall(r"make (?:-C \S+ )?([a-z-]+)", step.get("run", ""))
        }
        assert named <= targets


def _named_paths(text: str) -> set[str]:
    """Return the paths of the repository that a text names, which may be patterns, and the modules of the package."""
    paths = set(re.findall(rf"(?<![\w./-])/?((?:{'|'.join(FOLDERS)})/[\w.*/-]*)", text))
    modules = re.findall(r"(?<![\w./-])boxwright(?:\.\w+)+", text)
    return paths | {f"src/{module.replace('.', '/')}" for module in modules}


def _is_there(name: str) -> bool:
    """Return whether a file or folder has a name, or fits a pattern; a dotted name may end with what a module defines."""
    stem = name.rstrip("/")
    return any(next(ROOT.glob(end), None) for end in (stem, f"{stem}.py", f"{stem.rpartition('/')[0]}.py"))


@pytest.mark.parametrize("path", BUILD, ids=lambda path: path.name)
def test_paths_that_the_build_names_are_there(path: Path) -> None:
    text = path.read_text()
    # What `make check` compares with its docstrings: a prefix, and paths below it.
    public = re.search(r"\(addprefix (\S+), (.*?)\)", text, re.S)
    below = [f"{public[1]}{name}" for name in public[2].replace("\\", " ").split()] if public else []
    assert [name for name in sorted({*_named_paths(text), *below}) if not _is_there(name)] == []


def test_a_path_that_is_not_there_is_found() -> None:
    text = "pytest tests/training tests/preflight src/boxwright/cli/* build/website/site boxwright.nn.batch_norm.BatchNormSettings"
    assert _named_paths(text) == {
        "tests/training", "tests/preflight", "src/boxwright/cli/*", "src/boxwright/nn/batch_norm/BatchNormSettings",
    }  # fmt: skip
    assert [name for name in _named_paths(text) if not _is_there(name)] == ["tests/preflight"]
    assert sum(len(_named_paths(path.read_text())) for path in BUILD) > 40


def _check(name: str) -> Any:
    return runpy.run_path(str(ROOT / "release" / "check.py"))[name]


def _tracked() -> list[str]:
    done = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True, check=False)
    if done.returncode:
        pytest.skip("not in a repository")
    return done.stdout.strip("\0").split("\0")


def test_a_wheel_holds_what_is_tracked_and_of_a_known_kind() -> None:
    tracked = _tracked()
    whole = [name.removeprefix("src/") for name in tracked if name.startswith("src/")]
    more = ["boxwright/_native.so", "boxwright-1.0.dist-info/METADATA", "boxwright-1.0.dist-info/licenses/LICENSE"]
    unwanted = _check("unwanted_in_wheel")
    assert unwanted([*whole, *more], tracked) == []
    secrets = [
        "boxwright/.env",
        "boxwright/notes.txt",
        "boxwright/api/other.so",
        "boxwright.libs/libgomp.so",
        "tests/a.py",
    ]
    assert unwanted([*whole, *secrets], tracked) == secrets
    assert unwanted(["boxwright/.env"], [*tracked, "src/boxwright/.env"]) == ["boxwright/.env"]


def test_an_sdist_holds_what_is_tracked_in_known_folders() -> None:
    tracked = _tracked()
    unwanted = _check("unwanted_in_sdist")
    assert unwanted(["PKG-INFO", *tracked], tracked) == []
    assert unwanted(["src/boxwright/.env", "notes/a.txt"], [*tracked, "src/boxwright/.env", "notes/a.txt"]) == [
        "src/boxwright/.env", "notes/a.txt",
    ]  # fmt: skip
    assert unwanted(["src/boxwright/new.py"], tracked) == ["src/boxwright/new.py"]


def test_what_a_release_runs_is_pinned_and_what_is_not_is_named(tmp_path: Path) -> None:
    unpinned = _check("unpinned")
    assert unpinned(ROOT) == []
    (tmp_path / ".github" / "workflows").mkdir(parents=True)
    (tmp_path / "docker").mkdir()
    (tmp_path / ".github" / "workflows" / "a.yml").write_text(
        f"- uses: a/b@v1\n- uses: a/c@{'0' * 40} # v1\n  uses: d@main\n"
    )
    (tmp_path / "docker" / "a.Dockerfile").write_text(f"FROM python:3 AS x\nFROM python:3@sha256:{'0' * 64}\n")
    assert unpinned(tmp_path) == ["a.yml: a/b@v1", "a.yml: d@main", "a.Dockerfile: python:3"]


def test_a_release_is_built_by_what_checks_it() -> None:
    steps = yaml.safe_load((ROOT / ".github" / "workflows" / "release.yml").read_text())["jobs"]["build"]["steps"]
    assert [step["run"] for step in steps if "run" in step] == ["make release-check"]
    assert '"pins": pins' in (ROOT / "release" / "check.py").read_text()


# Packages by what `release/*.txt` are made of.
HASHED = {
    "install.txt": "dev",
    "notebooks.txt": "notebooks",
    "fuzz.txt": "fuzz",
    "docs.txt": "docs",
    "release.txt": "release",
    "build.txt": "build",
}
# And what images install, which no group names.
IN_IMAGES = {
    "image.txt": [*PROJECT["dependencies"], *PROJECT["optional-dependencies"]["onnx"]],
    "serve.txt": [line for line in (ROOT / "docker" / "serve.txt").read_text().splitlines() if line[0] != "#"],
}
# What installs the newest releases, the oldest, or what a user would, on purpose.
UNHASHED = {"test-wheel", "test-oldest", "test-newest", "race", "lock"}


def _asked(name: str) -> list[Requirement]:
    """Return what a group asks for, with the package's own dependencies where it asks for the package."""
    groups = tomllib.loads((ROOT / "pyproject.toml").read_text())["dependency-groups"]
    included = {"include-group": "build"}
    lines = [one for line in groups[name] for one in (groups["build"] if line == included else [line])]
    asked, left = [], [Requirement(line) for line in lines]
    while left:
        requirement = left.pop()
        if requirement.name != "boxwright":
            asked.append(requirement)
            continue
        lines = [*PROJECT["dependencies"], *(PROJECT["optional-dependencies"][extra] for extra in requirement.extras)]
        left += [Requirement(line) for part in lines for line in ([part] if isinstance(part, str) else part)]
    return asked


def _pinned(name: str) -> dict[str, list[str]]:
    """Return the versions of each package in a file of `release`, of which markers may leave several."""
    versions: dict[str, list[str]] = {}
    for package, version in re.findall(r"^([a-z0-9._-]+)==(\S+)", (ROOT / "release" / name).read_text(), re.MULTILINE):
        versions.setdefault(package, []).append(version)
    return versions


@pytest.mark.parametrize("name", [*HASHED, *IN_IMAGES, "uv.txt"])
def test_what_is_installed_is_named_by_hashes_and_by_no_address(name: str) -> None:
    text = (ROOT / "release" / name).read_text()
    entries = re.split(r"\n(?! )", text.strip())
    assert all(re.fullmatch(r"\S+==\S+( ; [^\n]+?)?( \\\n    --hash=sha256:[0-9a-f]{64})+", entry) for entry in entries)
    assert len(entries) == sum(map(len, _pinned(name).values()))
    assert "://" not in text


@pytest.mark.parametrize("name", HASHED)
def test_what_is_installed_is_what_the_project_asks_for(name: str) -> None:
    """`make lock` was run after a dependency changed; what the tests run in is checked where it came from there."""
    pinned = _pinned(name)
    for requirement in _asked(HASHED[name]):
        versions = pinned[canonicalize_name(requirement.name)]
        fits = [requirement.specifier.contains(version, prereleases=True) for version in versions]
        assert any(fits) if requirement.marker else all(fits), requirement
    assert len(_asked("dev")) > 60


@pytest.mark.parametrize("name", IN_IMAGES)
def test_what_images_install_is_what_the_tests_run_with(name: str) -> None:
    pinned, tested = _pinned(name), _pinned("install.txt")
    assert {canonicalize_name(Requirement(line).name) for line in IN_IMAGES[name]} <= set(pinned)
    assert all(set(versions) <= set(tested[package]) for package, versions in pinned.items())


@pytest.mark.parametrize("path", sorted((ROOT / "docker").glob("*.Dockerfile")), ids=lambda path: str(path.stem))
def test_images_install_by_hashes_alone_but_for_pytorch_without_cuda(path: Path) -> None:
    lines = [line for line in path.read_text().splitlines() if "pip install" in line]
    free = [line for line in lines if "--require-hashes --no-deps" not in line and not line.endswith("/wheels/*.whl")]
    assert [line.partition("install ")[2] for line in free] == (
        ["--no-deps --index-url https://download.pytorch.org/whl/cpu --requirement torch.txt"]
        if path.stem.startswith("cpu")
        else []
    )
    copied = {name for line in re.findall(r"^COPY (?!--)(.+) \S+$", path.read_text(), re.M) for name in line.split()}
    assert {f"!{name}" for name in copied} <= set((ROOT / ".dockerignore").read_text().splitlines())


def test_what_the_image_without_cuda_leaves_out() -> None:
    text = (ROOT / "docker" / "cpu.Dockerfile").read_text()
    others, torch = re.findall(r"awk '(.+?)' release/image.txt", text)
    kept, named = (
        subprocess.run(
            ["awk", program, ROOT / "release" / "image.txt"], capture_output=True, text=True, check=True
        ).stdout
        for program in (others, torch)
    )
    names = set(re.findall(r"^([a-z0-9._-]+)==", kept, re.MULTILINE))
    left_out = set(_pinned("image.txt")) - names
    assert {"torch", "torchvision", "triton"} <= left_out
    assert all(re.match("torch|triton|nvidia-|cuda-", name) for name in left_out)
    assert kept.count("--hash=") > 1000
    assert re.fullmatch(r"torch==\S+\ntorchvision==\S+\n", named)


def test_nothing_else_is_installed() -> None:
    target = ""
    for line in (ROOT / "Makefile").read_text().splitlines():
        target = named[1] if (named := re.match(r"(\S+):(?!=)", line)) else target
        if "pip install" in line and target not in UNHASHED:
            assert "--require-hashes" in line or "--no-deps --no-build-isolation --editable ." in line, line
        assert not re.search(r"install (--\S+ )*uv\b", line), line
    jobs = [job for path in WORKFLOWS for job in yaml.safe_load(path.read_text())["jobs"].values()]
    steps = [step.get("run", "") for job in jobs for step in job["steps"]]
    assert len(steps) > 10
    assert [line for line in steps if "pip install" in line] == [
        "python -m pip install --require-hashes --no-deps --requirement release/install.txt",
        "python -m pip install --no-deps --no-build-isolation --editable .",
    ]


def test_the_newest_of_everything_is_tried_each_night() -> None:
    nightly = yaml.safe_load((ROOT / ".github" / "workflows" / "nightly.yml").read_text())
    assert "test-newest" in nightly["jobs"]["make"]["strategy"]["matrix"]["target"]
    recipe = re.search(r"^test-newest:.*\n((?:\t.*\n)+)", (ROOT / "Makefile").read_text(), re.MULTILINE)
    assert recipe is not None
    assert "uv pip install --quiet --upgrade --editable . --group dev" in recipe[1]


def test_each_promise_about_security_names_the_test_that_holds_it() -> None:
    text = (ROOT / "SECURITY.md").read_text()
    rows = [line.strip("| ").split(" | ") for line in text.splitlines() if line.startswith("| ")][1:]
    assert len(rows) == 11
    for _, _, tests in rows:
        named = re.findall(r"`([^`]+)`", tests)
        assert named
        assert all((ROOT / name).is_file() for name in named), named
