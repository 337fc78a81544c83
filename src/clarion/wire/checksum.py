"""CRC-32C, the checksum of record batches and of our own files.

The package `crc32c` also brings a command line and asks `importlib.metadata` for its own version: forty modules, a
tenth of a broker's start. What is needed of it is one function of an extension module, which is loaded alone.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from importlib.machinery import PathFinder
from importlib.util import module_from_spec
from typing import Any, Final

_EXTENSION: Final = "crc32c._crc32c"


def _load() -> Callable[..., int]:
    module = sys.modules.get(_EXTENSION) or _load_extension()
    if module is None:  # another release, arranged in another way
        from crc32c import crc32c as whole

        module_function: Callable[..., int] = whole
        return module_function
    function: Callable[..., int] = module.crc32c
    return function


def _load_extension() -> Any:
    package = PathFinder.find_spec("crc32c")
    spec = PathFinder.find_spec(_EXTENSION, package.submodule_search_locations) if package else None
    if spec is None or spec.loader is None:
        return None
    module = module_from_spec(spec)
    spec.loader.exec_module(module)
    sys.modules[_EXTENSION] = module  # for whoever imports the whole package later
    return module


crc32c: Final = _load()
"""`crc32c(data, value=0)`: of `data`, or of what gave `value` and `data` behind it."""
