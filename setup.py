"""Compiles the hot path with mypyc where there is a C compiler: for wheels, and for `make compile`.

An editable install (`make setup`) compiles nothing: what it put beside the sources would shadow them once they are
edited. Without a compiler, or without Python's headers, a wheel is plain Python, and one line says so.
"""

import os
import re
import subprocess
import sys
import sysconfig
import tempfile
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from glob import glob
from pathlib import Path

from setuptools import setup
from setuptools.command.build_ext import build_ext

# What a small request passes through. The reasons, and what such a module must not do: docs/decisions/0008.
COMPILED = (
    "model/histogram.py",
    "log/*.py",
    "replication/*.py",
    "queues/*.py",
    *(f"wire/{name}.py" for name in ("batch", "cursor", "fields", "frames", "limits", "records", "varints")),
    *(f"wire/{name}.py" for name in ("produce", "fetch", "fetch_response", "replica_fetch", "current_leader")),
    *(f"net/{name}.py" for name in ("budget", "channel", "connection", "dialogue", "frames", "in_order")),
    *(f"net/{name}.py" for name in ("latencies", "outbox")),
    *(f"net/{name}.py" for name in ("replies", "reply_room", "server")),
    *(
        f"broker/{name}.py"
        for name in ("dispatch", "request_limits", "session", "resolver", "partitions", "preparing", "waiting")
    ),
    "broker/fetch_sessions.py",
    *(f"broker/apis/{name}.py" for name in ("k00_produce", "produce_replies")),
    *(f"broker/apis/{name}.py" for name in ("k01_fetch", "fetch_reading", "fetch_replies")),
    *(f"broker/apis/{name}.py" for name in ("read_replicas", "replica_fetches")),
    "testing/relay.py",  # a subclass of what is compiled has to be compiled with it
)
# Where pip builds a wheel there are mypy and setuptools, and none of the libraries that other modules import: what mypy
# says of those is for `make types`.
MYPY_FLAGS = ("--no-error-summary", "--ignore-missing-imports", "--follow-imports=silent", "--no-warn-unused-ignores")
COMMANDS = {"bdist_wheel", "build_ext"}  # those that compile; an editable install is `editable_wheel`


def compiled_sources() -> list[str]:
    """Packages themselves stay Python: they hold words and names, and Python finds modules through them."""
    found = [path for pattern in COMPILED for path in sorted(glob(f"src/clarion/{pattern}"))]
    return [path for path in found if not path.endswith("__init__.py")]


def why_not() -> str | None:
    """What keeps C code from being compiled here, if anything does."""
    if os.environ.get("CLARION_COMPILED") == "0":
        return "CLARION_COMPILED=0 asks for that"
    if not Path(sysconfig.get_path("include"), "Python.h").exists():
        return "Python's headers are missing (apt-get install python3-dev)"
    compiler = (os.environ.get("CC") or sysconfig.get_config_var("CC") or "cc").split()
    with tempfile.TemporaryDirectory() as folder:
        Path(folder, "probe.c").write_text("#include <stdlib.h>\nint main(void) { return 0; }\n")
        try:
            subprocess.run([*compiler, "probe.c", "-o", "probe"], cwd=folder, capture_output=True, check=True)
        except (OSError, subprocess.CalledProcessError):
            return f"the C compiler {compiler[0]} is missing or cannot compile (apt-get install gcc libc6-dev)"
    return None


def extensions() -> list[object]:
    if (reason := why_not()) is not None:
        print(f"clarion: not compiled, it runs as plain Python: {reason}", file=sys.stderr)
        return []
    from mypyc.build import mypycify

    made = mypycify(
        [*MYPY_FLAGS, *compiled_sources()],
        opt_level=os.environ.get("MYPYC_OPT_LEVEL", "3"),
        debug_level="0",
        multi_file=True,  # a file for each core, see below
        group_name="clarion",
        target_dir=os.environ.get("MYPYC_C_FOLDER", "build/c"),
    )
    for path in sorted({Path(source) for extension in made for source in extension.sources}):
        path.write_text(empty_before_reuse(path.read_text()))
    return made


# mypyc keeps one freed generator of each kind for the next call, and offers it before it has dropped what that one
# held. While a file is closed there other threads run: who takes the generator finds his own values dropped under way,
# and a walk over a log ends early, without a word. tests/log/test_abandoned_readers.py fails where this is not mended.
OFFERED = re.compile(
    r"^    if \((?P<kept>\w+_free_instance) == NULL\) \{\n"
    r"        (?P=kept) = self;\n(?P<drop>.*?)^        return;\n    \}\n",
    re.DOTALL | re.MULTILINE,
)
OFFERED_WHEN_EMPTY = r"""    if (\g<kept> == NULL) {
\g<drop>        if (\g<kept> == NULL) {  // dropping may have freed another
            \g<kept> = self;
            return;
        }
    }
"""


def empty_before_reuse(code: str) -> str:
    mended, count = OFFERED.subn(OFFERED_WHEN_EMPTY, code)
    if count != code.count("_free_instance = self;"):
        raise SystemExit("clarion: this version of mypyc keeps freed objects in a way that setup.py does not know")
    return mended


class BuildOnAllCores(build_ext):
    """mypyc makes one library of all modules, whose files setuptools would compile one after the other."""

    def build_extensions(self) -> None:
        compile_files = self.compiler.compile
        with ThreadPoolExecutor(os.cpu_count()) as pool:

            def compile_apart(files: list[str], **options: object) -> list[str]:
                apart = pool.map(partial(_compile_one, compile_files, options), files)
                return list(apart)

            self.compiler.compile = compile_apart
            super().build_extensions()


def _compile_one(compile_files, options, file):  # type: ignore[no-untyped-def]
    return compile_files([file], **options)[0]


if __name__ == "__main__":
    os.chdir(Path(__file__).resolve().parent)
    wanted = COMMANDS & {*sys.argv}
    setup(ext_modules=extensions() if wanted else [], cmdclass={"build_ext": BuildOnAllCores})
