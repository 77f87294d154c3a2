"""Checkpoints and weights that are damaged, incomplete, or made to hurt: refused, or what was written."""

from __future__ import annotations

import io
import json
import struct
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import save

import boxwright as bw
from boxwright.base.errors import CheckpointError
from boxwright.base.safetensors_file import pack_safetensors, read_safetensors
from boxwright.weights.export_weights import write_safetensors
from boxwright.weights.store import CheckpointStore, load_archive, read_checkpoint, save_archive
from tests.fuzz.guard import guarded
from tests.fuzz.readers import small_checkpoint


@pytest.fixture
def whole(tmp_path: Path) -> Path:
    (tmp_path / "ckpt-2.pt").write_bytes(small_checkpoint()[0])
    return tmp_path / "ckpt-2.pt"


def places(size: int, count: int) -> list[int]:
    """Bytes spread over a file, with all of its last 300, where an archive has its directory and its digest."""
    return sorted({*np.linspace(0, size - 1, count).astype(int).tolist(), *range(size - 300, size)})


@pytest.mark.slow
def test_no_byte_may_change(whole: Path) -> None:
    """A digest covers all of the file: whatever byte changes, it is refused, or the content is what was written."""
    data = whole.read_bytes()
    wanted = small_checkpoint()[1]["network"]
    accepted = 0
    for place in places(len(data), 300):
        changed = bytearray(data)
        changed[place] ^= 0xFF
        whole.write_bytes(changed)
        try:
            found = read_checkpoint(whole)["network"]
        except CheckpointError:
            continue
        else:  # a byte of the mark before the digest: then the archive's own checksums prove the rest
            accepted += 1
            assert all(torch.equal(value, found[name]) for name, value in wanted.items())
    assert accepted <= len("boxwright sha256 ") + 2


@pytest.mark.parametrize("name", ["ckpt-2.pt", "best.pt"])
@pytest.mark.parametrize("start", [0.2, 0.5, 0.8])
def test_rotten_regions(tmp_path: Path, name: str, start: float) -> None:
    data = bytearray(small_checkpoint()[0])
    place = int(len(data) * start)
    data[place : place + 64] = b"\xff" * 64
    (tmp_path / name).write_bytes(data)
    with pytest.raises(CheckpointError, match=f"{name}: not a readable checkpoint: damaged: its digest does not hold"):
        bw.restore_detector(tmp_path / name)


def test_a_run_resumes_from_the_last_that_is_whole(whole: Path) -> None:
    rotten = bytearray(whole.read_bytes())
    rotten[len(rotten) // 2] ^= 1
    (whole.parent / "ckpt-10.pt").write_bytes(rotten)
    with pytest.warns(UserWarning, match=r"ckpt-10.pt: .*its digest does not hold; using the previous one"):
        found = CheckpointStore(whole.parent).latest()
    assert found is not None
    assert found[0].name == "ckpt-2.pt"


def test_tensors_exchanged_in_the_archives_table(tmp_path: Path) -> None:
    """Each tensor's checksum holds, but under another's name."""
    shapes = {name: tuple(value.shape) for name, value in small_checkpoint()[1]["network"].items()}
    assert len(set(shapes.values())) < len(shapes)
    with zipfile.ZipFile(io.BytesIO(small_checkpoint()[0])) as archive:
        members = {member.filename: archive.read(member) for member in archive.infolist()}
    sizes: dict[int, list[str]] = {}
    for name, data in members.items():
        if "/data/" in name:
            sizes.setdefault(len(data), []).append(name)
    first, second = next(names for names in sizes.values() if len({members[name] for name in names}) > 1)[:2]
    members[first], members[second] = members[second], members[first]
    with zipfile.ZipFile(tmp_path / "ckpt-2.pt", "w") as archive:
        for name, data in members.items():
            archive.writestr(name, data)
    with pytest.raises(CheckpointError, match="damaged, or written by another program: it has no digest"):
        bw.restore_detector(tmp_path / "ckpt-2.pt")


def test_files_of_others_are_held_to_their_own_checksums(tmp_path: Path) -> None:
    """What torch.save writes has no digest; its archive's checksums, which torch does not look at, are looked at."""
    path = tmp_path / "w.pth"
    torch.save({"weight": torch.arange(5000.0)}, path)
    assert load_archive(path)["weight"][7] == 7
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)
    with pytest.raises(CheckpointError, match="damaged: the checksum of .*data/0' in it does not hold"):
        load_archive(path)


@pytest.mark.slow
def test_a_bomb(tmp_path: Path) -> None:
    """Two megabytes that become two gigabytes."""
    plain = io.BytesIO()
    torch.save({"format": 1, "x": torch.zeros(4)}, plain)
    with zipfile.ZipFile(plain) as source, zipfile.ZipFile(tmp_path / "ckpt-1.pt", "w", zipfile.ZIP_DEFLATED) as packed:
        for name in source.namelist():
            packed.writestr(name, source.read(name) if not name.endswith("data/0") else b"\0" * 2**28)
    for read, wanted in (
        (read_checkpoint, "it has no digest"),
        (load_archive, "is compressed, which torch never does"),
    ):
        outcome = guarded(lambda read=read: read(tmp_path / "ckpt-1.pt"), memory=2**27)
        assert outcome.kind == "refused", outcome.text
        assert wanted in outcome.text


class Evil:
    def __reduce__(self) -> Any:
        return (print, ("run",))


def test_code_is_not_run_and_no_advice_is_given_to_run_it(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with (tmp_path / "ckpt-1.pt").open("w+b") as file:
        save_archive({"format": 1, "network": Evil()}, file)
    torch.save({"network": Evil()}, tmp_path / "w.pth")
    for read, name in ((read_checkpoint, "ckpt-1.pt"), (load_archive, "w.pth")):
        with pytest.raises(CheckpointError, match="more than tensors and plain data") as caught:
            read(tmp_path / name)
        assert "weights_only" not in str(caught.value)
    assert capsys.readouterr().out == ""


ODD: list[tuple[str, Any]] = [
    ("seed", "model {"),
    ("seed", -1),
    ("step", -1),
    ("samples", 1 << 80),
    ("step", {}),
    ("step", None),
    ("samples", "x"),
    ("parts", [1]),
    ("config", 5),
    ("categories", -1),
    ("categories", [{"label": 0}]),
    ("categories", [{"label": "x", "id": 1, "name": "a"}]),
    ("categories", torch.zeros(3)),
    ("network", -1),
    ("network", {"backbone": 5}),
    ("network", {5: torch.zeros(1)}),
    ("average", float("nan")),
    ("optimizer", ""),
    ("optimizer", {}),
    ("optimizer_kind", 3),
    ("scaler", 1),
    ("selection", [{}]),
    ("selection", {"weight": torch.zeros(1)}),
    ("began", "a\0b"),
    ("format", torch.zeros(3)),
]


@pytest.mark.slow_except(
    "samples-1208925819614629174706176",
    "categories-value11",
    "categories-value12",
    "network-value15",
    "selection-value22",
)
@pytest.mark.filterwarnings("ignore:.*using the previous one")
@pytest.mark.parametrize(("field", "value"), ODD)
def test_fields_of_other_types(tmp_path: Path, field: str, value: Any) -> None:
    from tests.fuzz.test_corpus import resume

    with (tmp_path / "ckpt-1.pt").open("w+b") as file:
        save_archive({**small_checkpoint()[1], field: value}, file)
    with pytest.raises(CheckpointError):
        resume(tmp_path)


# Runs that began before these were written are resumed without.
OF_NEWER_RUNS = ("average_initial_shares", "initial_shares", "recent_losses", "restarts", "threads")


@pytest.mark.slow_except("format", "network", "optimizer", "parts", "scaler", "threads")
@pytest.mark.parametrize("field", sorted(small_checkpoint()[1]))
def test_fields_that_are_missing(tmp_path: Path, field: str) -> None:
    content = {name: value for name, value in small_checkpoint()[1].items() if name != field}
    with (tmp_path / "ckpt-1.pt").open("w+b") as file:
        save_archive(content, file)
    if field in OF_NEWER_RUNS:
        assert bw.restore_detector(tmp_path / "ckpt-1.pt")[2] == 1
        return
    with pytest.raises(CheckpointError, match=f"it has no '{field}'|not a checkpoint of Boxwright"):
        bw.restore_detector(tmp_path / "ckpt-1.pt")


def test_slots_of_another_shape(tmp_path: Path) -> None:
    from tests.fuzz.test_corpus import resume

    content = small_checkpoint()[1]
    with (tmp_path / "ckpt-1.pt").open("w+b") as file:
        state = {0: {"momentum": torch.zeros(3, 3)}}
        save_archive({**content, "optimizer": {**content["optimizer"], "state": state}}, file)
    with pytest.raises(CheckpointError, match="momentum has shape"):
        resume(tmp_path)


def test_weights_that_are_no_numbers(tmp_path: Path) -> None:
    content = small_checkpoint()[1]
    name = next(name for name, value in content["network"].items() if value.is_floating_point())
    broken = content["network"][name].clone()
    broken.view(-1)[0] = float("nan")
    with (tmp_path / "ckpt-1.pt").open("w+b") as file:
        save_archive({**content, "network": {**content["network"], name: broken}}, file)
    wanted = f"{name}: 1 of {broken.numel()} values are not finite"
    with pytest.raises(CheckpointError, match=wanted):
        bw.restore_detector(tmp_path / "ckpt-1.pt")
    detector, _, _ = bw.restore_detector(_written(tmp_path / "good.pt"))
    before = detector.network.state_dict()[name].clone()
    (tmp_path / "w.safetensors").write_bytes(
        save({k: v.contiguous() for k, v in {**content["network"], name: broken}.items()})
    )
    with pytest.raises(CheckpointError, match=wanted):
        bw.load_weights(detector, tmp_path / "w.safetensors")
    assert torch.equal(detector.network.state_dict()[name], before), "the detector is as it was"


def _written(path: Path) -> Path:
    path.write_bytes(small_checkpoint()[0])
    return path


def test_no_bit_of_our_safetensors_may_change(tmp_path: Path) -> None:
    tensors = {"a": torch.arange(40.0).reshape(8, 5), "b.c": torch.ones(3, dtype=torch.float16)}
    data = pack_safetensors(tensors)
    path = tmp_path / "w.safetensors"
    path.write_bytes(data)
    assert torch.equal(read_safetensors(path)["a"], tensors["a"])
    for bit in range(0, len(data) * 8, 3):
        changed = bytearray(data)
        changed[bit // 8] ^= 1 << bit % 8
        path.write_bytes(changed)
        try:
            found = read_safetensors(path)
        except CheckpointError:
            continue
        same = set(found) == set(tensors) and all(torch.equal(found[name], tensors[name]) for name in tensors)
        assert same, f"bit {bit}"


def test_safetensors_of_a_detector_carry_a_digest(tmp_path: Path) -> None:
    detector, _, _ = bw.restore_detector(_written(tmp_path / "ckpt-1.pt"))
    path = write_safetensors(detector, tmp_path / "w.safetensors")
    data = path.read_bytes()
    header = json.loads(data[8 : 8 + struct.unpack_from("<Q", data)[0]])
    assert len(header["__metadata__"]["boxwright_sha256"]) == 64
    changed = bytearray(data)
    changed[-5] ^= 4
    path.write_bytes(changed)
    with pytest.raises(CheckpointError, match="its digest does not hold"):
        bw.load_weights(detector, path)


def test_torch_reads_what_is_sealed(whole: Path) -> None:
    """The digest is an archive's comment: others pass over it."""
    assert torch.load(whole, weights_only=True)["step"] == 1
    with zipfile.ZipFile(whole) as archive:
        assert archive.testzip() is None
        assert archive.comment.startswith(b"boxwright sha256 ")


@pytest.mark.parametrize("suffix", [".onnx", ".pt2", ".xml", ".tflite"])
def test_an_exported_file_is_named_as_what_it_is(tmp_path: Path, suffix: str) -> None:
    path = tmp_path / f"detector{suffix}"
    path.write_bytes(b"something")
    with pytest.raises(bw.CheckpointError, match=r"is exported, for detection alone.* pass the run or checkpoint"):
        bw.restore_detector(path)
