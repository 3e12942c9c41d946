"""`holdfast`: the root command."""

import click


@click.group()
def main() -> None:
    """Durable jobs and messages in the database you already have."""
