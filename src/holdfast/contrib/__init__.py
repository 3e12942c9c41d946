"""Integrations with other packages, each an extra: `pip install 'holdfast[prometheus]'`, `'holdfast[otel]'`."""
