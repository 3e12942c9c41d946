"""A scrape as Prometheus makes it: over HTTP, read by its own parser."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from urllib.request import urlopen

from prometheus_client import Metric
from prometheus_client.parser import text_string_to_metric_families

from holdfast import Holdfast
from holdfast.contrib.prometheus import serve
from support.running_worker import PATIENCE_SECONDS


class Scrape:
    """The samples of one response."""

    def __init__(self, text: str) -> None:
        self.families: dict[str, Metric] = {one.name: one for one in text_string_to_metric_families(text)}
        self.samples = [sample for family in self.families.values() for sample in family.samples]

    def __getitem__(self, name: str) -> float:
        """The value of a sample without labels."""
        return self.value(name)

    def value(self, name: str, **labels: str) -> float:
        """The sum of all samples of this name with these labels."""
        return sum(one.value for one in self.samples if one.name == name and labels.items() <= one.labels.items())

    def labels(self, name: str, label: str) -> set[str]:
        return {one.labels[label] for one in self.samples if one.name == name}

    def counters(self) -> dict[tuple[Any, ...], float]:
        return {
            (one.name, *sorted(one.labels.items())): one.value
            for one in self.samples
            if one.name.endswith(("_total", "_count", "_sum", "_bucket"))
        }


def fetch(url: str) -> Scrape:
    with urlopen(url, timeout=PATIENCE_SECONDS) as answer:
        assert answer.headers["Content-Type"].startswith("text/plain")
        return Scrape(answer.read().decode())


@contextmanager
def served(app: Holdfast) -> Iterator[str]:
    server = serve(app, 0)
    try:
        yield server.url
    finally:
        server.close()


def scrape(app: Holdfast) -> Scrape:
    with served(app) as url:
        return fetch(url)
