"""No patch is ignored without a word: compiled code calls its own functions directly and holds its own constants.

So a test that patches a compiled module, or a class of one, fails; and so does one that patches a `Final` of any of
our modules, since compiled code has a copy of its value. Such tests carry the marker `uncompiled`, and `make test`
runs them uncompiled. (The methods of an instance compiled code protects by itself: AttributeError.)
"""

import inspect
import pkgutil
import sys
from typing import Any

import pytest

from clarion.compiled import SUFFIX

_ALLOWED_SETATTR = pytest.MonkeyPatch.setattr
_ALLOWED_DELATTR = pytest.MonkeyPatch.delattr


class PatchIgnoredError(AssertionError):
    pass


def refuse_patches_of_compiled_code() -> None:
    pytest.MonkeyPatch.setattr = _setattr  # type: ignore[method-assign, assignment]
    pytest.MonkeyPatch.delattr = _delattr  # type: ignore[method-assign, assignment]


def refuse(target: object, name: object) -> None:
    """`target` and `name` as MonkeyPatch takes them: an object and an attribute, or the path of both."""
    if isinstance(target, str):
        path, _, name = target.rpartition(".")
        target = pkgutil.resolve_name(path)
    if why := _why_ignored(target, str(name)):
        raise PatchIgnoredError(f"{name} of {target} is {why}: a patch is ignored. Mark the test `uncompiled`.")


def _why_ignored(target: object, name: str) -> str | None:
    module = sys.modules.get(target.__module__) if inspect.isclass(target) else target
    if not inspect.ismodule(module) or module.__name__.partition(".")[0] != "clarion":
        return None
    if (getattr(module, "__file__", None) or "").endswith(SUFFIX):
        return "compiled"
    is_final = module is target and "Final" in str(getattr(module, "__annotations__", {}).get(name, ""))
    return "a constant that is copied into compiled code" if is_final else None


def _setattr(self: pytest.MonkeyPatch, target: Any, name: Any, *value: Any, **options: Any) -> None:
    refuse(target, name)
    _ALLOWED_SETATTR(self, target, name, *value, **options)


def _delattr(self: pytest.MonkeyPatch, target: Any, *name: Any, **options: Any) -> None:
    refuse(target, name[0] if name else "")
    _ALLOWED_DELATTR(self, target, *name, **options)
