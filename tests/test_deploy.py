"""Files for deployment: what they have to have, and that they fit the code and each other."""

import configparser
import re

import pytest
import yaml

from astrai_api.settings import Settings

VARIABLES = {f"ASTRAI_{name.upper()}" for name in Settings.model_fields}
SHUTDOWN = Settings.model_fields["shutdown_timeout"].default


@pytest.fixture(scope="module")
def read(root):
    return lambda name: (root / "docs/deploy" / name).read_text(encoding="utf-8")


@pytest.fixture(scope="module")
def objects(read):
    found = list(yaml.safe_load_all(read("kubernetes/astrai.yaml")))
    return {item["kind"]: item for item in found}


def seconds(text):
    return int(re.fullmatch(r"(\d+)s?", str(text))[1])


def test_every_variable_is_a_setting(root, read):
    for path in sorted((root / "docs/deploy").rglob("*")):
        if path.is_file():
            used = set(re.findall(r"\bASTRAI_[A-Z_]*[A-Z]\b", path.read_text(encoding="utf-8")))
            assert used - VARIABLES <= {"ASTRAI_MODELS"}, path  # a folder, for compose alone


def test_the_images_run_without_rights_and_are_asked_for_their_health(read):
    stages = re.split(r"^FROM ", read("docker/Dockerfile"), flags=re.MULTILINE)[1:]
    by_name = {stage.splitlines()[0].rpartition(" AS ")[2]: stage for stage in stages}
    for target in ("cpu", "gpu"):
        assert by_name[target].startswith("base AS ")
        assert by_name[target].rstrip().endswith("USER 10001")
    base = by_name["base"]
    assert "HEALTHCHECK" in base
    assert "/health" in base
    assert "VOLUME /var/cache/astrai" in base
    assert '"astrai_api:app"' in base
    assert not re.search(r"^(CMD|ENTRYPOINT) (?!\[)", base, re.MULTILINE)  # a shell eats signals


def test_compose_gives_the_server_time_to_stop(read):
    services = yaml.safe_load(read("docker/compose.yaml"))["services"]
    assert set(services) == {"cpu", "gpu"}
    for name, service in services.items():
        assert service["build"]["target"] == name
        assert service["read_only"] is True
        assert service["cap_drop"] == ["ALL"]
        assert seconds(service["stop_grace_period"]) > SHUTDOWN


def test_the_unit_gives_the_server_time_to_stop_and_no_rights(read):
    unit = configparser.RawConfigParser(strict=False)
    unit.optionxform = str
    unit.read_string(read("systemd/astrai.service"))
    service = unit["Service"]
    assert seconds(service["TimeoutStopSec"]) > SHUTDOWN
    assert "astrai_api:app" in service["ExecStart"]
    assert service["NoNewPrivileges"] == service["DynamicUser"] == "yes"
    assert service["ProtectSystem"] == "strict"


class TestKubernetes:
    @pytest.fixture
    def pod(self, objects):
        return objects["Deployment"]["spec"]["template"]["spec"]

    def test_a_pod_has_time_to_drain(self, objects, pod):
        (container,) = pod["containers"]
        pause = container["lifecycle"]["preStop"]["sleep"]["seconds"]
        drain = int(objects["ConfigMap"]["data"]["ASTRAI_SHUTDOWN_TIMEOUT"])
        assert pod["terminationGracePeriodSeconds"] > pause + drain

    def test_probes_ask_what_they_should(self, pod):
        (container,) = pod["containers"]
        paths = {name: container[name]["httpGet"]["path"] for name in container if "Probe" in name}
        assert paths == {
            "startupProbe": "/health",
            "livenessProbe": "/health",
            "readinessProbe": "/ready",
        }

    def test_threads_are_the_cores_of_the_pod(self, objects, pod):
        (container,) = pod["containers"]
        cores = container["resources"]["limits"]["cpu"]
        assert objects["ConfigMap"]["data"]["ASTRAI_NUM_THREADS"] == cores
        assert container["resources"]["requests"]["cpu"] == cores

    def test_all_objects_are_about_the_same_pods(self, objects):
        labels = objects["Deployment"]["spec"]["template"]["metadata"]["labels"]
        assert objects["Deployment"]["spec"]["selector"]["matchLabels"] == labels
        assert objects["Service"]["spec"]["selector"] == labels
        assert objects["PodDisruptionBudget"]["spec"]["selector"]["matchLabels"] == labels
        target = objects["HorizontalPodAutoscaler"]["spec"]["scaleTargetRef"]
        assert target["name"] == objects["Deployment"]["metadata"]["name"]

    def test_the_autoscaler_reads_what_the_adapter_serves(self, objects, read):
        (rule,) = yaml.safe_load(read("kubernetes/prometheus-adapter.yaml"))["rules"]["custom"]
        (metric,) = objects["HorizontalPodAutoscaler"]["spec"]["metrics"]
        assert metric["pods"]["metric"]["name"] == rule["name"]["as"]
        assert rule["seriesQuery"].startswith("astrai:num_requests_waiting{")
