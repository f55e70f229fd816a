from prometheus_client.parser import text_string_to_metric_families

from astrai_api.metrics import ServerMetrics
from astrai_api.replicas.metrics_page import merged_page


def page_with(responses):
    metrics = ServerMetrics()
    metrics.responses["/health", 200] = responses
    metrics.first_token.observe(0.3)
    return metrics.page("m", {}, ready=True).decode()


def samples(page):
    families = list(text_string_to_metric_families(page))
    assert len({family.name for family in families}) == len(families)
    return {
        (sample.name, frozenset(sample.labels.items())): sample.value
        for family in families
        for sample in family.samples
    }


def test_every_sample_of_every_replica_is_there_once_with_its_name():
    pages = {"a": page_with(3), "b": page_with(5)}
    merged = samples(merged_page(pages).decode())
    expected = {
        (name, labels | {("replica", replica)}): value
        for replica, page in pages.items()
        for (name, labels), value in samples(page).items()
    }
    assert merged == expected
    labels = {("replica", "b"), ("model_name", "m"), ("path", "/health"), ("status", "200")}
    assert merged["astrai:http_responses_total", frozenset(labels)] == 5


def test_the_types_stay():
    merged = merged_page({"a": page_with(1)}).decode()
    assert "# TYPE astrai:http_responses_total counter" in merged
    assert "# TYPE astrai:time_to_first_token_seconds histogram" in merged


def test_no_replicas_have_no_metrics():
    assert merged_page({}) == b""
