"""The metrics of all replicas on one page, as Prometheus collects them."""

from collections.abc import Iterator, Mapping

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import Metric
from prometheus_client.parser import text_string_to_metric_families


def merged_page(pages: Mapping[str, str]) -> bytes:
    """One page of several, with the label ``replica`` on every sample.

    Args:
        pages: what each replica shows, by its name.
    """
    families: dict[str, Metric] = {}
    for name, page in pages.items():
        for family in text_string_to_metric_families(page):
            merged = families.setdefault(
                family.name, Metric(family.name, family.documentation, family.type)
            )
            for sample in family.samples:
                merged.samples.append(sample._replace(labels={"replica": name, **sample.labels}))
    registry = CollectorRegistry(auto_describe=False)
    registry.register(_Families(families))
    return generate_latest(registry)


class _Families:
    """Metrics as a registry takes them."""

    def __init__(self, families: Mapping[str, Metric]) -> None:
        self._families = families

    def collect(self) -> Iterator[Metric]:
        yield from self._families.values()
