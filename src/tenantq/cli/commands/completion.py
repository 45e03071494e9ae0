"""``tenantq completion``: a script that completes commands and options in a shell."""

import click
from click.shell_completion import get_completion_class

from tenantq.cli.command_group import Command


@click.command(cls=Command)
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
@click.pass_context
def completion(context: click.Context, shell: str) -> None:
    """Print a shell completion script.

    \b
    bash:  eval "$(tenantq completion bash)"        in ~/.bashrc
    zsh:   eval "$(tenantq completion zsh)"         in ~/.zshrc, after compinit
    fish:  tenantq completion fish | source         in ~/.config/fish/config.fish
    """
    kind = get_completion_class(shell)
    assert kind is not None
    root = context.find_root().command
    click.echo(kind(root, {}, "tenantq", "_TENANTQ_COMPLETE").source())
