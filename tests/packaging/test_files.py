"""What is packaged parses, refers to what exists, and is as hard as it claims to be."""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from clarion.broker.metrics import METRICS
from clarion.cli.flags import parse_flags
from clarion.cli.settings import load

ROOT = Path(__file__).parents[2]
PACKAGING = ROOT / "packaging"
UNIT = PACKAGING / "systemd" / "clarion.service"
COMPOSE = PACKAGING / "docker" / "compose.yaml"
DOCKERFILE = PACKAGING / "docker" / "Dockerfile"

# What keeps a broker that somebody has taken over from the rest of the machine.
HARDENED = {
    "NoNewPrivileges": "yes",
    "CapabilityBoundingSet": "",
    "ProtectSystem": "strict",
    "ProtectHome": "yes",
    "PrivateTmp": "yes",
    "PrivateDevices": "yes",
    "ProtectKernelTunables": "yes",
    "ProtectKernelModules": "yes",
    "ProtectControlGroups": "yes",
    "RestrictAddressFamilies": "AF_INET AF_INET6 AF_UNIX",
    "RestrictNamespaces": "yes",
    "RestrictSUIDSGID": "yes",
    "MemoryDenyWriteExecute": "yes",
    "SystemCallArchitectures": "native",
    "UMask": "0077",
    "StateDirectoryMode": "0700",
}


def unit_directives() -> list[tuple[str, str]]:
    lines = [line for line in UNIT.read_text().splitlines() if line and line[0] not in "#["]
    return [(name, value) for name, _, value in (line.partition("=") for line in lines)]


def test_the_unit_is_hardened() -> None:
    told = dict(unit_directives())
    assert {name: told.get(name) for name in HARDENED} == HARDENED
    assert told["User"] not in ("", "root")
    assert ("SystemCallFilter", "@system-service") in unit_directives()


def test_the_unit_starts_what_exists_with_settings_that_exist() -> None:
    program, command, *words = shlex.split(dict(unit_directives())["ExecStart"])
    assert (program, command) == ("/opt/clarion/bin/clarion", "serve")
    assert parse_flags(words)["config"] == "/etc/clarion/clarion.toml"
    found = load(str(PACKAGING / "systemd" / "clarion.toml"), {}, parse_flags([]))
    assert found.renamed == {}, "names of before are for those who have them in their files"
    settings = found.config
    assert settings.data_dir == f"/var/lib/{dict(unit_directives())['StateDirectory']}"
    assert settings.metrics_port == 9644


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="systemd is not installed here")
def test_systemd_finds_nothing_to_complain_about(tmp_path: Path) -> None:
    program = str(Path(sys.executable).parent / "clarion")
    unit = tmp_path / "clarion.service"
    unit.write_text(UNIT.read_text().replace("/opt/clarion/bin/clarion", program))
    verified = subprocess.run(["systemd-analyze", "verify", str(unit)], capture_output=True, text=True, check=False)
    assert (verified.returncode, verified.stderr) == (0, "")
    words = ["systemd-analyze", "security", "--offline=true", "--threshold=20", "--no-pager", str(unit)]
    judged = subprocess.run(words, capture_output=True, text=True, check=False)
    if "Unknown" not in judged.stderr and "unrecognized" not in judged.stderr:  # older ones look at running units only
        assert judged.returncode == 0, judged.stdout[-300:] + judged.stderr


def instructions() -> list[tuple[str, str]]:
    text = re.sub(r"\\\n", " ", DOCKERFILE.read_text())
    lines = [line for line in text.splitlines() if line and not line.startswith("#")]
    return [(word, rest.strip()) for word, _, rest in (line.partition(" ") for line in lines)]


def test_the_image_is_made_of_what_exists_and_runs_as_nobody_special() -> None:
    found = instructions()
    for sources in (rest.split() for word, rest in found if word == "COPY" and "--from" not in rest):
        for source in sources[:-1]:
            assert (ROOT / source).exists(), source
    ignored = (DOCKERFILE.with_name("Dockerfile.dockerignore")).read_text().split()
    assert {f"!{source}" for source in ("pyproject.toml", "setup.py", "README.md", "LICENSE", "src")} <= {*ignored}
    assert all(":" in rest.split()[0] and ":latest" not in rest for word, rest in found if word == "FROM")
    last_stage = found[max(at for at, (word, _) in enumerate(found) if word == "FROM") :]
    assert ("USER", "clarion") in last_stage
    entry = json.loads(dict(last_stage)["ENTRYPOINT"])
    assert entry[:2] == ["clarion", "serve"]
    words = [*entry[2:], *json.loads(dict(last_stage)["CMD"])]
    variables = dict(re.findall(r"(CLARION_\w+)=(\S+)", dict(last_stage)["ENV"]))
    settings = load(None, variables, parse_flags(words)).config
    assert settings.data_dir == dict(last_stage)["VOLUME"]
    ports = [str(settings.listeners[0].port), str(settings.metrics_port)]
    assert dict(last_stage)["EXPOSE"].split() == ports
    assert f"127.0.0.1:{settings.metrics_port}/readyz" in dict(last_stage)["HEALTHCHECK"]


def services() -> dict[str, Any]:
    return dict(yaml.safe_load(COMPOSE.read_text())["services"])


def test_compose_refers_to_files_and_settings_that_exist() -> None:
    composed = services()
    build = composed["broker"]["build"]
    assert (COMPOSE.parent / build["context"] / build["dockerfile"]).resolve() == DOCKERFILE
    volumes = yaml.safe_load(COMPOSE.read_text())["volumes"]
    for service in composed.values():
        for volume in service.get("volumes", ()):
            source = volume.split(":")[0]
            assert source in volumes or (COMPOSE.parent / source).exists(), source
        for port in service.get("ports", ()):
            assert port.startswith("127.0.0.1:"), "nothing listens to the world by chance"
        assert "image" not in service or not service["image"].endswith(":latest")
    broker = composed["broker"]
    entry = json.loads(dict(instructions())["ENTRYPOINT"])[2:]
    settings = load(
        None,
        {name: str(value) for name, value in broker["environment"].items()},
        parse_flags([*entry, *broker["command"]]),
    ).config
    ports = [settings.listeners[0].port, settings.metrics_port]
    assert broker["ports"] == [f"127.0.0.1:{port}:{port}" for port in ports]
    assert settings.http_advertised in [port.rpartition(":")[0] for port in broker["ports"]], "clients are sent there"
    assert broker["read_only"]
    assert broker["cap_drop"] == ["ALL"]


def test_prometheus_and_grafana_find_each_other() -> None:
    scraped = yaml.safe_load((PACKAGING / "prometheus" / "prometheus.yaml").read_text())
    (job,) = scraped["scrape_configs"]
    host, _, port = job["static_configs"][0]["targets"][0].partition(":")
    assert host in services()
    assert port in dict(instructions())["EXPOSE"].split()
    assert all((PACKAGING / "prometheus" / name).exists() for name in scraped["rule_files"])
    (source,) = yaml.safe_load((PACKAGING / "grafana/provisioning/datasources/prometheus.yaml").read_text())[
        "datasources"
    ]
    assert source["uid"] == dashboard()["panels"][0]["datasource"]["uid"]
    (provider,) = yaml.safe_load((PACKAGING / "grafana/provisioning/dashboards/clarion.yaml").read_text())["providers"]
    mounted = [volume.split(":")[1] for volume in services()["grafana"]["volumes"]]
    assert any(os.path.dirname(path) == provider["options"]["path"] for path in mounted)


def dashboard() -> dict[str, Any]:
    return dict(json.loads((PACKAGING / "grafana" / "clarion.json").read_text()))


LABELS = {metric.name: {*metric.labels} for metric in METRICS.values()}
LABELS |= {f"{name}_bucket": LABELS[name] | {"le"} for name in METRICS if METRICS[name].kind == "histogram"}
ALWAYS = {"instance", "job"}  # Prometheus adds them
OF_THE_PROCESS = {"process_cpu_seconds_total", "process_resident_memory_bytes", "process_open_fds"}


def check_expression(text: str) -> None:
    """Every metric exists, and every label is one of the metrics it stands beside."""
    names = set(re.findall(r"\b(?:clarion|process)_\w+", text))
    assert names or "up{" in text, text
    assert names <= {*LABELS} | OF_THE_PROCESS, names - {*LABELS}
    labels = set().union(*(LABELS.get(name, set()) for name in names)) | ALWAYS
    grouped = {each.strip() for group in re.findall(r"by \(([^)]*)\)", text) for each in group.split(",")}
    matched = set(re.findall(r"[{,]\s*(\w+)\s*=", text))
    assert grouped | matched <= labels, (text, (grouped | matched) - labels)
    for name in names:
        if name.endswith("_bucket"):
            assert re.search(rf"histogram_quantile\([\d.]+, sum by \(le[^)]*\) \(rate\({name}", text), text
        elif name in LABELS and METRICS[name].kind == "counter":
            assert re.search(rf"(rate|increase)\({name}", text), f"{name} only ever grows: {text}"


def test_the_dashboard_shows_metrics_that_exist() -> None:
    panels = dashboard()["panels"]
    assert len(panels) > 10
    assert len({panel["id"] for panel in panels}) == len(panels)
    for panel in panels:
        for target in panel["targets"]:
            check_expression(target["expr"])
            legend = set(re.findall(r"{{(\w+)}}", target["legendFormat"]))
            grouped = re.findall(r"by \(([^)]*)\)", target["expr"])
            assert all(any(label in each.split(", ") for each in grouped) for label in legend)
    corners = [(panel["gridPos"]["x"], panel["gridPos"]["y"]) for panel in panels]
    assert len({*corners}) == len(corners)


def test_every_alert_is_about_metrics_that_exist_and_says_what_to_do() -> None:
    for rule in alert_rules():
        check_expression(rule["expr"])
        assert rule["labels"]["severity"] in ("critical", "warning")
        assert rule["annotations"]["summary"]
        assert rule["annotations"]["description"]


def alert_rules() -> list[dict[str, Any]]:
    (group,) = yaml.safe_load((PACKAGING / "prometheus" / "alerts.yaml").read_text())["groups"]
    return list(group["rules"])
