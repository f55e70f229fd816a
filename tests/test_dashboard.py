"""The Grafana dashboard and the alerts ask for metrics that the server has."""

import asyncio
import json
import re
from itertools import combinations

import httpx
import pytest
import yaml
from prometheus_client.parser import text_string_to_metric_families

from astrai_api.application import create_app
from astrai_api.settings import Settings
from astrai_api.testing import FakeEngine

METRIC = re.compile(r"\b(?:astrai:|process_)\w+")
LABELS_OF_PROMETHEUS = {"instance", "job"}
FUNCTIONS = {"sum", "max", "rate", "histogram_quantile", "clamp_min", "by", "on", "and"}


@pytest.fixture(scope="module")
def exported():
    """Of each metric family of a server its type, and the names and labels of its samples."""

    async def scrape():
        app = create_app(engine=FakeEngine(), settings=Settings())
        transport = httpx.ASGITransport(app)
        async with httpx.AsyncClient(transport=transport, base_url="http://test") as client:
            body = {"messages": [{"role": "user", "content": "Hello"}]}
            await client.post("/v1/chat/completions", json=body)
            return (await client.get("/metrics")).text

    return list(text_string_to_metric_families(asyncio.run(scrape())))


@pytest.fixture(scope="module")
def labels(exported):
    """The label names of each sample name."""
    found = {}
    for family in exported:
        for sample in family.samples:
            found.setdefault(sample.name, set()).update(sample.labels)
    return found


@pytest.fixture(scope="module")
def panels(root):
    dashboard = json.loads((root / "docs/deploy/grafana/astrai.json").read_text(encoding="utf-8"))
    assert dashboard["title"] == "AstrAI"
    names = {variable["name"] for variable in dashboard["templating"]["list"]}
    assert names == {"datasource", "model", "instance"}
    return dashboard["panels"]


def check_expression(expression, labels):
    names = set(METRIC.findall(expression))
    assert names, expression
    assert names <= labels.keys(), names - labels.keys()
    known = LABELS_OF_PROMETHEUS.union(*(labels[name] for name in names))
    used = set(re.findall(r"(\w+)\s*=~?\s*\"", expression))
    for grouping in re.findall(r"\b(?:by|on) \(([^)]*)\)", expression):
        used |= {name.strip() for name in grouping.split(",")}
    assert used <= known, f"{used - known} in {expression}"


def test_every_query_of_the_dashboard_asks_for_what_is_there(panels, labels):
    expressions = [t["expr"] for panel in panels for t in panel.get("targets", ())]
    assert len(expressions) > 20
    for expression in expressions:
        check_expression(expression, labels)
        for variable in ("$model", "$instance"):
            assert variable in expression or "process_" in expression, expression


def test_every_metric_is_on_the_dashboard(panels, exported):
    shown = " ".join(t["expr"] for panel in panels for t in panel.get("targets", ()))
    missing = [f.name for f in exported if f.name.startswith("astrai:") and f.name not in shown]
    assert missing == []


def test_panels_say_what_they_are_for_and_do_not_overlap(panels):
    ids = [panel["id"] for panel in panels]
    assert len(set(ids)) == len(ids)
    cells = []
    for panel in panels:
        assert panel["title"]
        if panel["type"] != "row":
            assert panel["description"].endswith(".")
            assert panel["datasource"]["uid"] == "${datasource}"
        grid = panel["gridPos"]
        columns = range(grid["x"], grid["x"] + grid["w"])
        assert columns.stop <= 24
        cells.append({(x, grid["y"] + dy) for x in columns for dy in range(grid["h"])})
    assert not any(a & b for a, b in combinations(cells, 2))


def test_alerts_ask_for_what_is_there_and_are_explained(root, labels):
    (group,) = yaml.safe_load((root / "docs/deploy/prometheus/alerts.yml").read_text())["groups"]
    guide = (root / "docs/guides/operate.md").read_text(encoding="utf-8")
    for rule in group["rules"]:
        if rule["expr"].startswith("up{"):
            continue
        check_expression(rule["expr"], labels)
        assert rule["labels"]["severity"] in ("page", "ticket")
        assert f"`{rule['alert']}`" in guide


def test_the_reference_lists_every_metric(root, exported):
    table = (root / "docs/reference/metrics.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| `(astrai:\w+)` \| (\w+) \|(.*?)\| .+ \|$", table, re.MULTILINE)
    documented = {name: (kind, set(re.findall(r"`(\w+)`", own))) for name, kind, own in rows}
    assert len(documented) == len(rows)
    expected = {}
    for family in exported:
        if family.name.startswith("astrai:"):
            own = {n for sample in family.samples for n in sample.labels} - {"model_name", "le"}
            name = f"{family.name}_total" if family.type == "counter" else family.name
            expected[name] = (family.type, own)
    assert documented == expected
