"""Pipelines out of Python files. Whatever is wrong with a file is said in one line that begins with its place."""

from __future__ import annotations

import sys
import traceback
from collections.abc import Iterable
from pathlib import Path
from types import ModuleType

from clarion.pipeline.broker_link import BrokerAwayError
from clarion.pipeline.definition import DefinitionError, Pipeline, RunRefusedError
from clarion.pipeline.reasons import plain_reason


class LoadError(Exception):
    """A file that gives no pipeline; the message says where and why."""


def load_files(paths: Iterable[Path]) -> list[Pipeline]:
    """Every pipeline of every file, in order. Two of one name would share a checkpoint, so that is refused."""
    found: list[Pipeline] = []
    homes: dict[str, Path] = {}
    for path in paths:
        for each in load_file(path):
            if each.name in homes:
                raise LoadError(f"{path}: pipeline {each.name} is in {homes[each.name]} too; give one of them name=…")
            homes[each.name] = path
            found.append(each)
    return found


def load_file(path: Path) -> list[Pipeline]:
    """The pipelines that a file's top level holds."""
    module = _run(path)
    found = list({id(each): each for each in vars(module).values() if isinstance(each, Pipeline)}.values())
    if not found:
        raise LoadError(f"{path}: no pipeline in it; put @pipeline(reads=…, writes=…) above a function")
    return found


def hint(error: BaseException) -> str:
    """What to write for a name that was forgotten and that Spark has, or for a type that only Spark can read."""
    if "SESSION_OR_CONTEXT_NOT_EXISTS" in str(error):
        return " Spark starts after the file was read: write types as objects, `@udf(LongType())` for `@udf('long')`"
    if isinstance(error, NameError) and error.name:
        from importlib import import_module

        try:
            functions = import_module("pyspark.sql.functions")
        except ImportError:
            return ""
        if hasattr(functions, error.name):
            return f"; add `from pyspark.sql.functions import {error.name}`"
    return ""


def told(error: Exception, pipeline: Pipeline) -> str:
    """A failure in one line; with the line of the pipeline's file where it came from."""
    if isinstance(error, DefinitionError | RunRefusedError | BrokerAwayError):
        return str(error)
    line = line_of(error, pipeline.path)
    place = f"{pipeline.path}:{line}: " if line else ""
    return f"{place}{plain_reason(error)}{hint(error)}"


def line_of(error: BaseException, path: Path | None) -> int | None:
    """The last line of this file that the error went through."""
    frames = traceback.extract_tb(error.__traceback__)
    lines = [each.lineno for each in frames if path is not None and Path(each.filename) == path]
    return lines[-1] if lines else None


def _run(path: Path) -> ModuleType:
    try:
        source = path.read_bytes()
    except FileNotFoundError:
        raise LoadError(f"{path}: no such file") from None
    except OSError as error:
        raise LoadError(f"{path}: {error.strerror}") from error
    module = ModuleType(f"clarion_pipeline_{path.stem}")
    module.__file__ = str(path.absolute())
    _make_known(module, path)
    try:
        exec(compile(source, str(path), "exec"), vars(module))
    except SyntaxError as error:
        raise LoadError(f"{error.filename or path}:{error.lineno}: {error.msg}") from error
    except DefinitionError as error:
        raise LoadError(f"{path}:{line_of(error, path)}: {error}") from error
    except Exception as error:
        raise LoadError(f"{path}:{line_of(error, path)}: {type(error).__name__}: {error}{hint(error)}") from error
    _let_travel(path.absolute().parent)
    return module


def _make_known(module: ModuleType, path: Path) -> None:
    """The file may import its neighbours; behind everything else, so that a `copy.py` does not hide Python's own."""
    sys.modules[module.__name__] = module
    folder = str(path.absolute().parent)
    if folder not in sys.path:
        sys.path.append(folder)


def _let_travel(folder: Path) -> None:
    """Functions of the file and of its neighbours go to executors as a whole: those could not import them."""
    try:
        from pyspark import cloudpickle
    except ImportError:
        return
    for each in list(sys.modules.values()):
        place = Path(getattr(each, "__file__", None) or "/")
        is_installed = "site-packages" in place.parts or each.__name__.partition(".")[0] == "clarion"
        if place.is_relative_to(folder) and not is_installed:
            cloudpickle.register_pickle_by_value(each)  # type: ignore[no-untyped-call]
