"""No patch is ignored without a word: compiled code calls its own functions directly and holds its own constants.

So a test that patches a compiled module, or a class of one, fails; and so does one that patches a `Final` of another
module that a compiled one imports, since compiled code has a copy of its value. Such tests carry the marker
`uncompiled`, and `make test` runs them uncompiled. (The methods of an instance compiled code protects by itself:
AttributeError.)
"""

import inspect
import pkgutil
import sys
import types
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
    if _is_compiled(module):
        return "compiled"
    is_final = module is target and "Final" in str(getattr(module, "__annotations__", {}).get(name, ""))
    return "a constant that compiled code has a copy of" if is_final and _is_known_to_compiled(module, name) else None


def _is_known_to_compiled(module: types.ModuleType, name: str) -> bool:
    """Some compiled module has imported the constant, or the module that it is in."""
    known = [vars(one) for one in list(sys.modules.values()) if _is_compiled(one)]
    value = getattr(module, name)  # not just the name: another module may have a constant that is called the same
    return any((name in names and names[name] == value) or module in names.values() for names in known)


def _is_compiled(module: object) -> bool:
    name, file = getattr(module, "__name__", ""), getattr(module, "__file__", None) or ""
    return name.startswith("clarion.") and file.endswith(SUFFIX)


def _setattr(self: pytest.MonkeyPatch, target: Any, name: Any, *value: Any, **options: Any) -> None:
    refuse(target, name)
    _ALLOWED_SETATTR(self, target, name, *value, **options)


def _delattr(self: pytest.MonkeyPatch, target: Any, *name: Any, **options: Any) -> None:
    refuse(target, name[0] if name else "")
    _ALLOWED_DELATTR(self, target, *name, **options)
