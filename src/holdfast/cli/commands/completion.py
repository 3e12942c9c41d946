"""`holdfast completion`: print a shell completion script."""

import click
from click.shell_completion import get_completion_class

from ..options import example

SHELLS = ("bash", "zsh", "fish")
VARIABLE = "_HOLDFAST_COMPLETE"


@click.command(
    epilog=example(
        """eval "$(holdfast completion bash)"     # in ~/.bashrc""",
        """eval "$(holdfast completion zsh)"      # in ~/.zshrc""",
        "holdfast completion fish > ~/.config/fish/completions/holdfast.fish",
    )
)
@click.argument("shell", type=click.Choice(SHELLS))
@click.pass_context
def completion(ctx: click.Context, shell: str) -> None:
    """Print a script for tab completion in bash, zsh or fish.

    Names of queues, tasks and schedules and job ids are read from the database, if --db precedes them on the command
    line or HOLDFAST_URL is set.
    """
    kind = get_completion_class(shell)
    assert kind is not None
    click.echo(kind(ctx.find_root().command, {}, "holdfast", VARIABLE).source())
