"""Jars from Maven Central, fetched once into a folder of the cache; PeerUnavailable says why there are none."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path

from bench.peers.process import PeerUnavailable

Artifact = tuple[str, str, str]  # group, name, version

_OFFLINE_WITHIN_S = 90  # a warm local repository takes 5–25 s
_CONNECT_WITHIN_MS = 5_000
_NOTHING_ELSE = "<exclusions><exclusion><groupId>*</groupId><artifactId>*</artifactId></exclusion></exclusions>"


class Jars:
    """Artifacts by name; with all that they depend on, or, where their user brings that along, alone."""

    def __init__(
        self, what: str, cache: Path, artifacts: Sequence[Artifact], *, within_s: float, alone: bool = False
    ) -> None:
        self._what = what
        self._cache = cache
        self._artifacts = artifacts
        self._within_s = within_s
        self._alone = alone
        self._why_not: str | None = None  # a machine without Maven is asked once per process, not once per row

    def paths(self) -> list[Path]:
        if not (self._cache / "complete").exists():
            if self._why_not is None:
                self._why_not = self._fetch()
            if self._why_not:
                raise PeerUnavailable(self._why_not)
        return sorted((self._cache / "libs").glob("*.jar"))

    def _fetch(self) -> str:
        """Copies the jars into the cache; returns why not, or an empty string."""
        maven = shutil.which("mvn")
        if maven is None or shutil.which("java") is None:
            return f"mvn and java are needed to fetch and run {self._what}"
        self._cache.mkdir(parents=True, exist_ok=True)
        (self._cache / "pom.xml").write_text(self._pom())
        # The local repository first: no network, and a mirror that hangs costs nothing.
        if not self._copy(maven, offline=True, within_s=_OFFLINE_WITHIN_S):
            return ""
        return self._copy(maven, offline=False, within_s=self._within_s)

    def _copy(self, maven: str, *, offline: bool, within_s: float) -> str:
        arriving = self._cache / "arriving"
        shutil.rmtree(arriving, ignore_errors=True)
        timeouts = (
            f"-Daether.connector.connectTimeout={_CONNECT_WITHIN_MS}",
            f"-Dmaven.wagon.http.connectionTimeout={_CONNECT_WITHIN_MS}",
        )
        command = [maven, "-q", "-B", *timeouts, *(["-o"] if offline else []), "-f", str(self._cache / "pom.xml"),
                   "dependency:copy-dependencies", f"-DoutputDirectory={arriving}"]  # fmt: skip
        try:
            done = subprocess.run(command, capture_output=True, text=True, timeout=within_s, check=False)
        except subprocess.TimeoutExpired:
            return f"Maven Central did not deliver the jars of {self._what} within {within_s:.0f} s"
        if done.returncode:
            first = next((line for line in done.stdout.splitlines() if "ERROR" in line), "mvn failed")
            return f"the jars of {self._what} could not be fetched: {first[:160]}"
        shutil.rmtree(self._cache / "libs", ignore_errors=True)
        arriving.rename(self._cache / "libs")
        (self._cache / "complete").touch()
        return ""

    def _pom(self) -> str:
        dependencies = "".join(
            f"<dependency><groupId>{group}</groupId><artifactId>{name}</artifactId><version>{version}</version>"
            f"{_NOTHING_ELSE * self._alone}</dependency>\n"
            for group, name, version in self._artifacts
        )
        head = '<project xmlns="http://maven.apache.org/POM/4.0.0"><modelVersion>4.0.0</modelVersion>'
        name = "<groupId>bench</groupId><artifactId>jars</artifactId><version>1</version>"
        return f"{head}{name}\n<dependencies>\n{dependencies}</dependencies></project>\n"


def need(program: str) -> str:
    path = shutil.which(program)
    if path is None:
        raise PeerUnavailable(f"{program} is not installed")
    return path
