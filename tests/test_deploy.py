"""The files of deploy/ and the pages about them: names that exist, and numbers that fit together."""

import argparse
import re
import shutil
import subprocess
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest

from slipring import __version__
from slipring.config.settings import SETTINGS, from_namespace
from slipring.core.limits import Limits
from slipring.observation.metric_table import METRICS
from tests.harness import serve
from tests.server.admin.watching import admin_url

ROOT = Path(__file__).parent.parent
DEPLOY = ROOT / "deploy"
FILES = sorted(path for path in DEPLOY.rglob("*") if path.is_file())
MANIFESTS = sorted((DEPLOY / "kubernetes").glob("*.yaml"))
DEPLOYMENT, STORES = ROOT / "docs" / "deployment.md", ROOT / "docs" / "stores.md"

# Flags of other programs.
THEIRS = {
    *("--create-home", "--home-dir", "--no-create-home", "--shell", "--system", "--uid"),  # useradd
    *("--from", "--interval", "--no-cache-dir", "--no-deps", "--require-hashes"),  # Dockerfile
    *("--retries", "--start-period", "--timeout"),
    *("--read-only", "--rm", "--stop-timeout", "--tmpfs"),  # docker run
    *("--enable-prompt-tokens-details", "--enable-tokenizer-info-endpoint", "--model"),  # vLLM
    *("--model-path", "--host", "--port"),  # SGLang
    "--now",  # systemctl
    "--dir",  # a benchmark
}
# Ours, but not in the table of settings; and where they are.
ELSEWHERE = {
    "--config": "src/slipring/config/settings.py",
    "--tenant": "src/slipring/commands/keys.py",
    "SLIPRING_AFFINITY_SECRET": "src/slipring/engines/remote/replica_affinity.py",
}
FLAGS = {
    *(each.flag for each in SETTINGS),
    *(f"--no-{each.flag[2:]}" for each in SETTINGS if each.kind is bool),
}
VARIABLES = {each.variable for each in SETTINGS}
LIMITS = Limits()
LIFETIME_S = LIMITS.max_age_s + LIMITS.age_grace_s
DRAIN_S = LIMITS.drain_timeout_s + 10  # with ticks, farewells, and what is closed at the end


def in_file(path: Path, pattern: str) -> list[str]:
    """What a pattern finds in a file, comments left out; something it must find."""
    found = re.findall(pattern, re.sub(r"^\s*#.*$", "", path.read_text(), flags=re.MULTILINE))
    assert found, f"{path.name} has no {pattern}"
    return found


def seconds(text: str) -> float:
    number, unit = text.rstrip("smh"), text.lstrip("0123456789")
    return float(number) * {"": 1, "s": 1, "m": 60, "h": 3600}[unit]


def documents(path: Path) -> list[dict[str, Any]]:
    yaml = pytest.importorskip(
        "yaml", reason="needs PyYAML, which is there only if something brings it along"
    )
    return list(yaml.safe_load_all(path.read_text()))


def deployment_of(name: str) -> dict[str, Any]:
    manifests = documents(DEPLOY / "kubernetes" / f"{name}.yaml")
    (deployment,) = (document for document in manifests if document["kind"] == "Deployment")
    return deployment


def pod_of(name: str) -> dict[str, Any]:
    pod: dict[str, Any] = deployment_of(name)["spec"]["template"]["spec"]
    return pod


# --- Names -----------------------------------------------------------------------------------


@pytest.mark.parametrize("path", [DEPLOYMENT, STORES, *FILES], ids=lambda path: path.name)
def test_what_is_named_exists(path: Path) -> None:
    text = path.read_text()
    variables = set(re.findall(r"\bSLIPRING_[A-Z_]*[A-Z]\b", text))
    assert variables <= VARIABLES | set(ELSEWHERE)
    flags = set(re.findall(r"(?<![\w-])--[a-z][a-z-]*[a-z]", text))
    assert flags <= FLAGS | set(ELSEWHERE) | THEIRS
    limits = set(re.findall(r"`([a-z_]+_(?:s|bytes|days))`", text))
    assert limits <= {each.name for each in SETTINGS}


@pytest.mark.parametrize(("name", "path"), ELSEWHERE.items())
def test_names_beside_the_settings_exist(name: str, path: str) -> None:
    assert name in (ROOT / path).read_text()


def test_every_file_is_spoken_of() -> None:
    page = DEPLOYMENT.read_text()
    for path in FILES:
        known = path if path.parent == DEPLOY else path.parent
        assert f"](../{known.relative_to(ROOT)})" in page, path.name


@pytest.mark.parametrize(
    ("file", "pattern"),
    [
        ("Dockerfile", r"127\.0\.0\.1:8000(/[a-z/]+)'"),
        ("nginx.conf", r"location = (/\S+)"),
        ("nginx.conf", r"location (/[a-z/]+[a-z])/ "),
        ("haproxy.cfg", r"httpchk GET (/\S+)"),
        ("haproxy.cfg", r"path (/\S+)"),
        ("haproxy.cfg", r"path_beg (/\S+)"),
        ("envoy.yaml", r"http_health_check: \{path: (/[^}]+)\}"),
        ("envoy.yaml", r"match: \{path\w*: (/[^}]+)\}"),
        ("kubernetes/slipring.yaml", r"httpGet: \{path: (/[^,]+),"),
    ],
)
def test_paths_that_are_asked_or_hidden_are_served(file: str, pattern: str) -> None:
    routes = (ROOT / "src/slipring/server/endpoints/app.py").read_text() + (
        ROOT / "src/slipring/server/peers.py"
    ).read_text()
    for path in in_file(DEPLOY / file, pattern):
        assert f'"{path}"' in routes


# --- Numbers ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("file", "pattern"),
    [
        ("nginx.conf", r"proxy_read_timeout (\w+);"),
        ("haproxy.cfg", r"timeout client (\w+)"),
        ("haproxy.cfg", r"timeout server (\w+)"),
        ("haproxy.cfg", r"timeout tunnel (\w+)"),
        ("haproxy.cfg", r"hard-stop-after (\w+)"),
        ("envoy.yaml", r"stream_idle_timeout: (\w+)"),
    ],
)
def test_balancers_wait_longer_than_a_connection_lives(file: str, pattern: str) -> None:
    (value,) = in_file(DEPLOY / file, pattern)
    assert seconds(value) > LIFETIME_S > LIMITS.ping_interval_s


def test_envoy_has_no_bound_for_a_whole_answer() -> None:
    assert in_file(DEPLOY / "envoy.yaml", r"\n {28}timeout: (\w+)") == ["0s"]


def test_bodies_may_be_as_large_as_frames() -> None:
    (nginx,) = in_file(DEPLOY / "nginx.conf", r"client_max_body_size (\d+)m;")
    (haproxy,) = in_file(DEPLOY / "haproxy.cfg", r"req\.body_size gt (\d+)")
    assert int(nginx) * 2**20 == int(haproxy) == LIMITS.max_frame_bytes


def test_whoever_stops_it_waits_for_the_drain() -> None:
    (systemd,) = in_file(DEPLOY / "slipring.service", r"TimeoutStopSec=(\w+)")
    (docker,) = in_file(DEPLOYMENT, r"--stop-timeout (\d+)")
    (kubernetes,) = in_file(DEPLOY / "kubernetes/slipring.yaml", r"terminationGracePeriodSeconds: (\d+)")
    (pause,) = in_file(DEPLOY / "kubernetes/slipring.yaml", r'command: \[sleep, "(\d+)"\]')
    assert min(seconds(systemd), seconds(docker), seconds(kubernetes) - seconds(pause)) > DRAIN_S


def test_the_page_tells_the_defaults() -> None:
    page = DEPLOYMENT.read_text()
    for said in (
        f"{LIFETIME_S:g} s",
        f"{LIMITS.max_frame_bytes // 2**20} MiB",
        f"`drain_timeout_s` ({LIMITS.drain_timeout_s:g} s)",
        f"every {LIMITS.ping_interval_s:g} s (`ping_interval_s`)",
        f"{LIMITS.parked_s:g} s (`parked_s`)",
        f"{LIMITS.max_connections:,} (`max_connections`)",
        f"`process_cache_bytes` ({LIMITS.process_cache_bytes // 2**30} GiB)",
    ):
        assert said in page, said


def test_the_page_tells_how_many_connections_a_database_needs() -> None:
    postgres = ROOT / "src/slipring/stores/databases/postgres.py"
    if not postgres.exists():
        pytest.skip("the PostgreSQL store is not here yet")
    (most,) = re.findall(r"^_POOL = (\d+)$", postgres.read_text(), re.MULTILINE)
    assert f"up to {most} connections" in DEPLOYMENT.read_text()


# --- Kubernetes ------------------------------------------------------------------------------


@pytest.mark.parametrize("path", [*MANIFESTS, DEPLOY / "envoy.yaml"], ids=lambda path: path.name)
def test_yaml_is_yaml(path: Path) -> None:
    for document in documents(path):
        assert "static_resources" in document or {"apiVersion", "kind", "metadata"} <= set(document)


@pytest.mark.parametrize("name", ["slipring", "vllm", "sglang"])
def test_services_lead_to_their_pods_and_set_no_variables_there(name: str) -> None:
    pod = pod_of(name)
    assert pod["enableServiceLinks"] is False  # a Service named slipring would set SLIPRING_PORT=tcp://…
    (container,) = pod["containers"]
    ports = {each["name"]: each["containerPort"] for each in container["ports"]}
    kinds = {document["kind"]: document for document in documents(DEPLOY / "kubernetes" / f"{name}.yaml")}
    labels = kinds["Deployment"]["spec"]["template"]["metadata"]["labels"]
    assert kinds["Service"]["spec"]["selector"].items() <= labels.items()
    assert kinds["Deployment"]["spec"]["selector"]["matchLabels"].items() <= labels.items()
    (served,) = kinds["Service"]["spec"]["ports"]
    assert served["port"] == ports[served["targetPort"]]


def test_the_deployment_never_has_fewer_pods_than_wanted() -> None:
    kinds = {document["kind"]: document for document in documents(DEPLOY / "kubernetes/slipring.yaml")}
    spec = kinds["Deployment"]["spec"]
    assert spec["strategy"]["rollingUpdate"]["maxUnavailable"] == 0
    assert kinds["PodDisruptionBudget"]["spec"]["maxUnavailable"] < spec["replicas"]
    assert kinds["PodDisruptionBudget"]["spec"]["selector"] == spec["selector"]


def test_pods_find_the_secrets_that_there_are() -> None:
    (secret,) = documents(DEPLOY / "kubernetes/secret.yaml")
    pod = pod_of("slipring")
    (container,) = pod["containers"]
    sources = [each["valueFrom"] for each in container["env"] if "valueFrom" in each]
    asked = [source["secretKeyRef"] for source in sources if "secretKeyRef" in source]
    (volume,) = (each["secret"] for each in pod["volumes"] if "secret" in each)
    assert {volume["secretName"], *(each["name"] for each in asked)} == {secret["metadata"]["name"]}
    keys = [each["key"] for each in asked + volume["items"]]
    assert sorted(keys) == sorted(secret["stringData"])
    assert all("CHANGE-ME" in value for value in secret["stringData"].values())


async def test_metrics_of_pods_can_be_scraped_by_the_monitoring_alone() -> None:
    kinds = {document["kind"]: document for document in documents(DEPLOY / "kubernetes/slipring.yaml")}
    (container,) = pod_of("slipring")["containers"]
    ports = {each["name"]: each["containerPort"] for each in container["ports"]}
    variables = {each["name"]: each for each in container["env"]}
    settings = {
        "SLIPRING_ADMIN": variables["SLIPRING_ADMIN"]["value"],
        "SLIPRING_ADMIN_KEY": "from the secret",
    }
    config = from_namespace(argparse.Namespace(), settings)
    host, port = config.admin.rsplit(":", 1)
    assert int(port) == ports["metrics"]
    # As the pod has it, but on a free port: a scraper names the pod by its address.
    async with serve(admin=f"{host}:0", admin_key=config.admin_key) as server:
        url = f"http://127.0.0.1:{urlsplit(admin_url(server)).port}/metrics"
        for key, status in (("wrong", 401), (config.admin_key, 200)):
            headers = {"Host": f"10.1.2.3:{port}", "Authorization": f"Bearer {key}"}
            async with server.http.get(url, headers=headers) as answer:
                assert answer.status == status
                assert ("slipring_turns_total" in await answer.text()) == (status == 200)
    assert "secretKeyRef" in variables["SLIPRING_ADMIN_KEY"]["valueFrom"]
    # The Service leads to the API alone, and the policy names every port that the pod has.
    assert [each["targetPort"] for each in kinds["Service"]["spec"]["ports"]] == ["http"]
    policy = kinds["NetworkPolicy"]["spec"]
    assert policy["podSelector"] == kinds["Deployment"]["spec"]["selector"]
    admitted = {rule["ports"][0]["port"]: rule.get("from") for rule in policy["ingress"]}
    assert admitted.keys() == ports.keys()
    assert admitted["http"] is None
    assert admitted["metrics"] == [
        {"namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": "monitoring"}}}
    ]


def test_the_pages_find_the_metrics_where_they_are() -> None:
    yaml = pytest.importorskip("yaml", reason="needs PyYAML")
    (secret,) = documents(DEPLOY / "kubernetes/secret.yaml")
    (container,) = pod_of("slipring")["containers"]
    kinds = {document["kind"]: document for document in documents(DEPLOY / "kubernetes/slipring.yaml")}
    labels = kinds["Deployment"]["spec"]["template"]["metadata"]["labels"]
    samples = [
        yaml.safe_load(text)
        for text in re.findall(r"```yaml\n(.*?)```", (ROOT / "docs/metrics.md").read_text(), re.S)
    ]
    (monitor,) = (sample for sample in samples if sample.get("kind") == "PodMonitor")
    (endpoint,) = monitor["spec"]["podMetricsEndpoints"]
    assert endpoint["port"] in [each["name"] for each in container["ports"]]
    assert endpoint["authorization"]["credentials"]["name"] == secret["metadata"]["name"]
    assert endpoint["authorization"]["credentials"]["key"] in secret["stringData"]
    assert monitor["spec"]["selector"]["matchLabels"].items() <= labels.items()
    (job,) = (
        job
        for sample in samples
        for job in sample.get("scrape_configs", ())
        if "kubernetes_sd_configs" in job
    )
    kept = {rule["source_labels"][0]: rule.get("regex") for rule in job["relabel_configs"]}
    assert kept["__meta_kubernetes_pod_label_app"] == labels["app"]
    assert kept["__meta_kubernetes_pod_container_port_name"] == endpoint["port"]


def test_the_image_names_the_port_of_the_admin_address() -> None:
    (exposed,) = in_file(DEPLOY / "Dockerfile", r"EXPOSE (.+)")
    (published,) = in_file(DEPLOYMENT, r"-p 127\.0\.0\.1:(\d+):\1 … slipring")
    (opened,) = in_file(DEPLOYMENT, r"SLIPRING_ADMIN=0\.0\.0\.0:(\d+)")
    assert published == opened
    assert set(exposed.split()) == {"8000", opened}
    # It is opened by those who bring a key: set in the image, no container would start without one.
    with pytest.raises(AssertionError):
        in_file(DEPLOY / "Dockerfile", "SLIPRING_ADMIN")


def test_pods_are_as_the_image_is() -> None:
    (user,) = in_file(DEPLOY / "Dockerfile", r"USER (\d+)")
    pod = pod_of("slipring")
    assert pod["securityContext"]["runAsUser"] == int(user)
    (container,) = pod["containers"]
    assert container["securityContext"]["readOnlyRootFilesystem"]
    assert "livenessProbe" not in container


def test_memory_holds_the_caches() -> None:
    (container,) = pod_of("slipring")["containers"]
    limit = int(container["resources"]["limits"]["memory"].removesuffix("Gi")) * 2**30
    connections = LIMITS.max_connections * 27 * 2**10  # as measured: benchmarks/results/idle_connections.json
    assert limit > LIMITS.process_cache_bytes + connections


def test_the_base_has_manifests_that_exist_and_the_version() -> None:
    (base,) = documents(DEPLOY / "kubernetes/kustomization.yaml")
    assert all((DEPLOY / "kubernetes" / name).exists() for name in base["resources"])
    (image,) = pod_of("slipring")["containers"]
    assert image["image"] == f"{base['images'][0]['name']}:{base['images'][0]['newTag']}"
    assert base["images"][0]["newTag"] == __version__


def test_pods_are_added_by_a_metric_that_there_is() -> None:
    (scaler,) = documents(DEPLOY / "kubernetes/autoscaling.yaml")
    (metric,) = scaler["spec"]["metrics"]
    assert metric["pods"]["metric"]["name"] in {each.name for each in METRICS}
    assert scaler["spec"]["scaleTargetRef"]["name"] == "slipring"
    assert scaler["spec"]["minReplicas"] == deployment_of("slipring")["spec"]["replicas"]


def test_compose_names_files_that_exist_and_variables_of_its_example() -> None:
    place = DEPLOY / "compose"
    (compose,) = documents(place / "compose.yaml")
    services = compose["services"]
    for service in services.values():
        for volume in service.get("volumes", ()):
            source = volume.partition(":")[0]
            assert source in compose["volumes"] or (place / source).exists(), volume
    assert (place / services["slipring"]["build"]["context"] / "deploy/Dockerfile").exists()
    assert services["slipring"]["image"] == f"slipring:{__version__}"
    asked = set(re.findall(r"\$\{([A-Z_]+)", (place / "compose.yaml").read_text()))
    given = dict(line.split("=", 1) for line in (place / "env.example").read_text().splitlines()[1:])
    assert asked == given.keys()
    secrets = asked - {"SLIPRING_ENGINE"}
    assert all("CHANGE-ME" in given[name] for name in secrets)
    grace = services["slipring"]["stop_grace_period"]
    assert seconds(grace) > DRAIN_S


def test_prometheus_of_compose_asks_where_slipring_answers() -> None:
    place = DEPLOY / "compose"
    (compose,), (prometheus,) = documents(place / "compose.yaml"), documents(place / "prometheus.yaml")
    (job,) = prometheus["scrape_configs"]
    port = compose["services"]["slipring"]["environment"]["SLIPRING_ADMIN"].rpartition(":")[2]
    assert job["static_configs"] == [{"targets": [f"slipring:{port}"]}]
    (secret,) = compose["services"]["prometheus"]["secrets"]
    assert job["authorization"] == {"credentials_file": f"/run/secrets/{secret}"}
    assert compose["secrets"][secret] == {"environment": "SLIPRING_ADMIN_KEY"}
    inside = {volume.split(":")[1] for volume in compose["services"]["prometheus"]["volumes"]}
    assert set(prometheus["rule_files"]) < inside


def test_the_image_of_vllm_has_the_plugin_and_the_version_of_the_manifest() -> None:
    (base,) = in_file(DEPLOY / "vllm.Dockerfile", r"FROM (\S+)")
    (container,) = pod_of("vllm")["containers"]
    assert container["image"] == base
    (plugin,) = in_file(DEPLOY / "vllm.Dockerfile", r"VLLM_PLUGINS=(\S+)")
    assert plugin in {point.name for point in entry_points(group="vllm.endpoint_plugins")}


# --- What the programs themselves say --------------------------------------------------------


def run(*command: str | Path) -> None:
    """Run a checker, or say that it is not here."""
    if shutil.which(str(command[0])) is None:
        pytest.skip(f"{command[0]} is not here")
    done = subprocess.run([str(word) for word in command], capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stdout + done.stderr


def without(path: Path, *patterns: str) -> str:
    """A file without what is not on this machine."""
    text = path.read_text()
    for pattern in patterns:
        text, count = re.subn(pattern, "", text, flags=re.MULTILINE)
        assert count, pattern
    return text


def test_nginx_takes_its_configuration(tmp_path: Path) -> None:
    server = without(DEPLOY / "nginx.conf", r"^\s*ssl_\w+ .*$", r"(?<=listen 443) ssl", r"^\s*access_log .*$")
    places = "".join(
        f"{kind}_temp_path {tmp_path}/{kind};"
        for kind in ("client_body", "proxy", "fastcgi", "uwsgi", "scgi")
    )
    (tmp_path / "nginx.conf").write_text(
        f"pid {tmp_path}/pid; error_log stderr; events {{}}\nhttp {{ access_log off; {places}\n{server}\n}}\n"
    )
    run("nginx", "-t", "-c", tmp_path / "nginx.conf")


def test_haproxy_takes_its_configuration(tmp_path: Path) -> None:
    (tmp_path / "haproxy.cfg").write_text(without(DEPLOY / "haproxy.cfg", r"(?<=bind :443) ssl .*$"))
    run("haproxy", "-c", "-f", tmp_path / "haproxy.cfg")


def test_envoy_takes_its_configuration(tmp_path: Path) -> None:
    tls = r"transport_socket:\n(?: {12}.*\n)+ {10}(?=filters)"
    (tmp_path / "envoy.yaml").write_text(without(DEPLOY / "envoy.yaml", tls))
    run("envoy", "--mode", "validate", "-c", tmp_path / "envoy.yaml")


def test_systemd_takes_its_unit(tmp_path: Path) -> None:
    unit = (DEPLOY / "slipring.service").read_text().replace("/opt/slipring/bin/slipring", "/bin/true")
    (tmp_path / "slipring.service").write_text(unit)
    run("systemd-analyze", "verify", tmp_path / "slipring.service")


def test_kubernetes_takes_its_manifests() -> None:
    run("kubeconform", "-strict", "-summary", *MANIFESTS)


def test_docker_takes_its_file() -> None:
    builder = shutil.which("docker") and subprocess.run(["docker", "buildx", "inspect"], capture_output=True)
    if not builder or builder.returncode:
        pytest.skip("docker has no builder here")
    run("docker", "build", "--check", "-f", DEPLOY / "Dockerfile", ROOT)
