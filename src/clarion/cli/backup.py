"""`clarion backup` and `clarion restore`: a data directory to another place and back, while its broker runs."""

from __future__ import annotations

import json
import os
import shutil
import time
from pathlib import Path
from typing import Annotated, Any, Final

import typer

from clarion.cli.errors import CliError
from clarion.cli.link import JsonOption
from clarion.cli.table import show_json
from clarion.cli.units import bytes_text, plural, utc_text

MANIFEST: Final = "backup.json"
_FORMAT: Final = 1

DataOption = Annotated[str, typer.Option("--data-dir", metavar="DIR", help="The broker's data directory.")]


def add_to(app: typer.Typer) -> None:
    app.command()(backup)
    app.command()(restore)


def backup(
    to: Annotated[Path, typer.Argument(metavar="TO", help="The folder to be made; it must not exist.")],
    data_dir: DataOption = "clarion-data",
    as_json: JsonOption = False,
) -> None:
    """Copy a broker's data directory, on its own machine, while it runs or not.

    The copy is what a crash at that moment would have left: every message that was acknowledged before the command
    began is in it.

    Example:

        clarion backup nightly --data-dir clarion-data
    """
    from clarion.cli.backup_files import copy_data_dir

    source = Path(data_dir)
    _refuse_other_than_a_single_broker(source)
    _refuse_existing(to)
    if to.resolve().is_relative_to(source.resolve()):
        raise CliError(f"{to} is inside {data_dir}, which belongs to the broker; choose a folder elsewhere")
    _take_all_descriptors()
    aside = _aside(to)
    try:
        aside.mkdir(mode=0o700, parents=True)
        files = [each._asdict() for each in copy_data_dir(source, aside)]
        made = {"format": _FORMAT, "made": utc_text(time.time_ns() // 1_000_000), "source": str(source.resolve())}
        _write(aside / MANIFEST, json.dumps({**made, "files": files}, indent=1).encode())
        _finish(aside, to)
    except OSError as error:
        raise CliError(f"cannot back up {data_dir} to {to}: {error.strerror}: {error.filename}") from error
    finally:
        shutil.rmtree(aside, ignore_errors=True)
    _report({"backup": str(to), **_sums(files)}, as_json, f"backed up {data_dir} to {to}")


def restore(
    source: Annotated[Path, typer.Argument(metavar="FROM", help="What `clarion backup` made.")],
    data_dir: DataOption = "clarion-data",
    as_json: JsonOption = False,
) -> None:
    """Make a data directory from a backup; every file is checked first. Start a broker with it as usual.

    Example:

        clarion restore nightly --data-dir clarion-restored
    """
    from clarion.cli.backup_files import copy_file

    target = Path(data_dir)
    _refuse_existing(target)
    files = _manifest(source)
    aside = _aside(target)
    try:
        aside.mkdir(mode=0o700, parents=True)
        for path, size, crc in files:
            (aside / path).parent.mkdir(mode=0o700, exist_ok=True)
            with (source / path).open("rb") as file:
                found = os.fstat(file.fileno()).st_size
                if found != size or copy_file(file.fileno(), aside / path, size) != crc:
                    raise CliError(f"{source / path} is not what was backed up: it is damaged")
        _finish(aside, target)
    except OSError as error:
        raise CliError(f"cannot restore {source} to {data_dir}: {error.strerror}: {error.filename}") from error
    finally:
        shutil.rmtree(aside, ignore_errors=True)
    sums = _sums([{"path": path, "size": size} for path, size, _ in files])
    _report({"data_dir": data_dir, **sums}, as_json, f"restored {source} to {data_dir}")


def _manifest(source: Path) -> list[tuple[str, int, int]]:
    try:
        told = json.loads((source / MANIFEST).read_bytes())
        if told["format"] != _FORMAT:
            raise CliError(f"{source} was made by another version of Clarion (format {told['format']})")
        found = [(str(each["path"]), int(each["size"]), int(each["crc32c"])) for each in told["files"]]
    except (FileNotFoundError, NotADirectoryError) as error:
        raise CliError(f"{source} is not a backup: there is no {MANIFEST} in it") from error
    except OSError as error:
        raise CliError(f"cannot read {source / MANIFEST}: {error.strerror}") from error
    except (ValueError, KeyError, TypeError) as error:
        raise CliError(f"{source / MANIFEST} cannot be read: it is damaged") from error
    for path, _, _ in found:
        if os.path.isabs(path) or ".." in Path(path).parts:
            raise CliError(f"{source / MANIFEST} names {path}, which is not inside the backup")
    return found


def _take_all_descriptors() -> None:
    """All files of a partition are open at a time."""
    import resource

    _soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


def _refuse_other_than_a_single_broker(folder: Path) -> None:
    from clarion.cli.backup_files import IDENTITY, REGISTRY

    if not (folder / IDENTITY).is_file():
        raise CliError(f"{folder} is not a broker's data directory: there is no {IDENTITY} in it")
    if not (folder / REGISTRY).is_file():
        raise CliError(
            f"{folder} has no {REGISTRY}: if its broker belongs to a cluster, the cluster's store says which topics "
            "there are, and a copy of one broker is no backup"
        )


def _refuse_existing(folder: Path) -> None:
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise CliError(f"{folder} exists already, and is not empty")


def _aside(folder: Path) -> Path:
    """Beside it, so that a rename makes it whole."""
    return folder.resolve().with_name(f".{folder.name}.{os.getpid()}.unfinished")


def _finish(aside: Path, folder: Path) -> None:
    os.sync()  # once for thousands of files: one by one they would take a flush each
    if folder.exists():
        folder.rmdir()
    aside.rename(folder.resolve())
    os.sync()


def _write(path: Path, content: bytes) -> None:
    with open(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
        file.write(content)


def _sums(files: list[dict[str, Any]]) -> dict[str, int]:
    partitions = {os.path.dirname(each["path"]) for each in files} - {""}
    return {"partitions": len(partitions), "files": len(files), "bytes": sum(each["size"] for each in files)}


def _report(row: dict[str, Any], as_json: bool, sentence: str) -> None:
    if as_json:
        show_json(row)
    else:
        print(f"{sentence}: {plural(row['partitions'], 'partition')}, {bytes_text(row['bytes'])}")
