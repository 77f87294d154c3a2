"""`boxwright doctor`."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from boxwright.base.errors import ConfigError
from boxwright.base.files import is_file, is_folder
from boxwright.base.read_settings import LABELS_ARE, ReadSettings, parse_label_convention
from boxwright.base.settings import name_device, setting
from boxwright.base.text import counted
from boxwright.cli.console import console, print_json, print_json_only, suggest, track_progress

if TYPE_CHECKING:
    from boxwright.training.preflight.examine import Depth
    from boxwright.training.preflight.records import Finding, Progress

_COLORS = {"fine": "green", "note": "cyan", "warning": "yellow", "fatal": "red"}


@dataclass(frozen=True, kw_only=True)
class DoctorSettings:
    """What is checked before a run, and how it is reported; `boxwright doctor` has an option for each."""

    checkpoint: str = setting("", "Weights to start from; default: fine_tune_checkpoint.")
    full: bool = setting(False, "Read all samples, not only 1000, and 10,000 image files, of each set.")
    as_json: bool = setting(
        False, "Print the findings as JSON; everything else goes to standard error.", flags=("--json",)
    )
    steps: bool = setting(True, "Try training steps, for memory and speed.")
    workers: int = setting(1, "Processes that prepare samples.", least=0)
    labels_are: str = setting("", LABELS_ARE)
    device: str = setting("auto", "Device of those steps: cpu, cuda, cuda:1, mps, or auto for cuda if available.")

    def __post_init__(self) -> None:
        name_device(self)


def doctor_command(
    settings: DoctorSettings,
    reading: ReadSettings,
    config: Annotated[
        Path,
        typer.Argument(help="A configuration to train; or annotated images, as for boxwright init."),
    ],
    changes: Annotated[
        list[str] | None, typer.Option("--set", help="Change the configuration first, as train does.")
    ] = None,
    fix: Annotated[
        Path | None,
        typer.Option(
            "--fix", help="Write the data to this new folder, with everything fixed that can be fixed safely."
        ),
    ] = None,
) -> None:
    """Check a configuration and its data, or data alone, for problems: boxes, leaks, anchors, rates, memory.

    Each finding has a verdict (fine, note, warning, fatal) and a remedy. Exit status 0: nothing fatal; 1: a run would
    fail or learn nothing.
    """
    if fix is not None:
        from boxwright.training.preflight.repair import require_new

        require_new(fix)
    if not _is_configuration(config) and (changes or settings.checkpoint):
        raise ConfigError("--set and --checkpoint need a configuration, not data")
    if _is_configuration(config) and (reading != ReadSettings() or settings.labels_are):
        raise ConfigError("--ignore_exif, --allow_paths_outside and --labels_are are for data, not a configuration")
    from boxwright.training.preflight.examine import Depth

    print_json_only(settings.as_json)
    depth = Depth(0, 0, 0) if settings.full else Depth()
    findings: list[Finding] = []
    if _is_configuration(config):
        findings += _examine_configuration(config, changes or [], settings, depth, track_progress)
    else:
        findings += _examine_data(config, _reading(settings, reading), depth, track_progress)
    fatal = any(finding.verdict == "fatal" for finding in findings)
    if settings.as_json:
        print_json([asdict(finding) for finding in findings])
    else:
        _print(findings)
    if fix is not None:
        _fix((config, _reading(settings, reading)), changes or [], fix)
    else:
        _suggest_next(config, changes, fatal=fatal)
    raise typer.Exit(int(fatal and fix is None))


def _is_configuration(path: Path) -> bool:
    """Whether a path is a configuration, not data: by its ending, and for YAML, JSON and XML by its content."""
    if is_folder(path):
        return False
    if path.suffix in (".yaml", ".yml", ".json", ".xml") and is_file(path):
        from boxwright.data.recognize import is_data_file

        return not is_data_file(path)
    from boxwright.data.recognize import is_record_file
    from boxwright.data.recognize_shards import source_of_pattern

    return path.suffix != ".csv" and not is_record_file(path) and source_of_pattern(str(path)) is None


def _examine_configuration(
    config: Path,
    changes: list[str],
    settings: DoctorSettings,
    depth: Depth,
    progress: Progress,
) -> list[Finding]:
    from boxwright.pipeline.load import load_config
    from boxwright.training.preflight.examine import examine
    from boxwright.training.rehearsal import check_speed_and_memory

    loaded = load_config(config, changes)
    findings = list(examine(loaded, settings.checkpoint, depth, progress))
    buildable = all(
        finding.check not in ("configuration", "fields") or finding.verdict != "fatal" for finding in findings
    )
    # A rehearsal on data that cannot be read would only repeat the finding.
    readable = all(finding.check != "empty_images" or finding.verdict != "fatal" for finding in findings)
    if settings.steps and buildable and readable:
        findings += check_speed_and_memory(loaded, settings.workers, settings.device)
    return findings


def _reading(settings: DoctorSettings, reading: ReadSettings) -> dict[str, Any]:
    """Return how data are read, as `recognize` takes it."""
    return {**asdict(reading), "labels_are": parse_label_convention(settings.labels_are)}


def _examine_data(data: Path, reading: dict[str, Any], depth: Depth, progress: Progress) -> list[Finding]:
    from boxwright.data.open_dataset import open_recognized
    from boxwright.data.recognize import recognize
    from boxwright.training.preflight.examine import examine_data
    from boxwright.training.preflight.records import Finding

    recognized = recognize(data, **reading)
    train, held_out = open_recognized(recognized)
    counts = counted(len(train), "image") + (f" to train and {len(held_out)} to evaluate" if held_out else "")
    findings = [Finding("data", "fine", f"{recognized.kind}, {counts}")]
    findings += [Finding("data", "note", note) for note in recognized.notes]
    findings += examine_data(train, held_out, depth, progress)
    return findings


def _fix(data: tuple[Path, dict[str, Any]], changes: list[str], out: Path) -> None:
    """Write repaired data, and print what was fixed."""
    from boxwright.data.open_dataset import open_recognized
    from boxwright.data.recognize import recognize
    from boxwright.training.preflight.repair import repair

    path, reading = data
    if _is_configuration(path):
        from boxwright.pipeline.input_reader import build_dataset
        from boxwright.pipeline.load import load_config

        loaded = load_config(path, changes)
        train = build_dataset(loaded.train_input_reader, "train_input_reader")
        readers = loaded.eval_input_reader
        held_out = build_dataset(readers[0], "eval_input_reader", train.categories) if readers else None
    else:
        train, held_out = open_recognized(recognize(path, **reading), masks=True)
    done = repair(train, held_out, out, track_progress)
    for what, count in done.counts.items():
        console.print(f"{what}: {count} ({', '.join(done.examples[what])})")
    if not done.has_masks:
        console.print("only boxes are written: not every object has an outline")
    console.print(f"fixed data: {done.folder}")
    suggest("train", done.folder)


def _suggest_next(config: Path, changes: list[str] | None, *, fatal: bool) -> None:
    if not _is_configuration(config):
        suggest("doctor", config, "--fix", "fixed") if fatal else suggest("train", config)
    elif fatal:
        suggest("doctor", config, when="after fixing the fatal findings")
    else:
        repeated = [word for change in changes or [] for word in ("--set", change)]
        suggest("train", "--pipeline_config_path", config, "--model_dir", "model", *repeated)


def _print(findings: list[Finding]) -> None:
    from rich.table import Table
    from rich.text import Text

    table = Table("verdict", "check", "finding and remedy", box=None, padding=(0, 2, 0, 0))
    for finding in findings:
        text = finding.found + (f"\n→ {finding.remedy}" if finding.remedy else "")
        table.add_row(Text(finding.verdict, _COLORS[finding.verdict]), finding.check, Text(text))
    console.print(table)
    counts = {verdict: sum(finding.verdict == verdict for finding in findings) for verdict in _COLORS}
    console.print(", ".join(f"{count} {verdict}" for verdict, count in counts.items()))
