"""``tenantq profile``: servers and credentials by name."""

from __future__ import annotations

import sys

import click

from tenantq.cli.command_group import CommandGroup
from tenantq.cli.output import json_option, print_done, print_json, print_table
from tenantq.cli.profiles import Profile, load_profiles, profiles_file, save_profiles
from tenantq.client import Client
from tenantq.client.settings import URL_DEFAULT
from tenantq.errors import Conflict

name_argument = click.argument("name")


@click.group(cls=CommandGroup)
def profile() -> None:
    """Keep servers and tokens under names, in a file that only you can read."""


@profile.command()
@name_argument
@click.option("--url", default=URL_DEFAULT, show_default=True, metavar="URL", help="The server.")
@click.option("--token", metavar="TOKEN", help="The token; - reads it from stdin.  [default: ask for it]")
@click.option("--tenant", metavar="NAME", help="Where commands act that name no tenant.")
@click.option(
    "--ca-file",
    type=click.Path(exists=True, dir_okay=False, resolve_path=True),
    metavar="FILE",
    help="PEM file of the authorities to trust, for https.",
)
@click.option(
    "--cert-file",
    type=click.Path(exists=True, dir_okay=False, resolve_path=True),
    metavar="FILE",
    help="PEM file of your own certificate.",
)
@click.option(
    "--key-file",
    type=click.Path(exists=True, dir_okay=False, resolve_path=True),
    metavar="FILE",
    help="PEM file of its key.",
)
@click.option("--use", "current", is_flag=True, help="Use it where none is named; the first one is used anyway.")
@click.option("--replace", is_flag=True, help="Replace the one of this name.")
@json_option
def add(
    *,
    name: str,
    url: str,
    token: str | None,
    tenant: str | None,
    ca_file: str | None,
    cert_file: str | None,
    key_file: str | None,
    current: bool,
    replace: bool,
    as_json: bool,
) -> None:
    """Store a server and a token under a name. Better than --token: the token is in no process list and no shell history."""
    profiles = load_profiles()
    if name in profiles.profiles and not replace:
        raise Conflict(f"there is a profile {name} already; --replace replaces it")
    token = _token(token)
    Client(url, token).close()  # both are well formed, or it says which is not
    made = Profile(url=url, token=token, tenant=tenant, ca_file=ca_file, cert_file=cert_file, key_file=key_file)
    profiles.profiles[name] = made
    if current or profiles.current is None:
        profiles.current = name
    save_profiles(profiles)
    file = profiles_file()
    print_done(f"stored profile {name} in {file}", {"name": name, "url": url, "file": str(file)}, as_json=as_json)


@profile.command("list")
@json_option
def list_profiles(*, as_json: bool) -> None:
    """List the profiles. Tokens are never shown."""
    profiles = load_profiles()
    shown = [
        {"name": name, "url": one.url, "tenant": one.tenant, "token": one.token is not None, "current": name == profiles.current}
        for name, one in profiles.profiles.items()
    ]  # fmt: skip
    if as_json:
        print_json({"profiles": shown})
        return
    rows = [(one["name"], one["url"], one["tenant"], one["token"], "*" if one["current"] else "") for one in shown]
    print_table(("name", "url", "tenant", "token", "current"), rows, empty="no profiles")


@profile.command()
@name_argument
@json_option
def use(*, name: str, as_json: bool) -> None:
    """Use a profile where none is named."""
    profiles = load_profiles()
    found = profiles.get(name)
    profiles.current = name
    save_profiles(profiles)
    print_done(f"using profile {name}: {found.url}", {"name": name, "url": found.url}, as_json=as_json)


@profile.command()
@name_argument
@json_option
def remove(*, name: str, as_json: bool) -> None:
    """Forget a profile. Its token stays valid: revoke it with 'tenantq key revoke'."""
    profiles = load_profiles()
    profiles.get(name)
    del profiles.profiles[name]
    if profiles.current == name:
        profiles.current = None
    save_profiles(profiles)
    print_done(f"removed profile {name}", {"name": name, "removed": True}, as_json=as_json)


def _token(given: str | None) -> str | None:
    if given is None and sys.stdin.isatty():
        given = str(click.prompt("Token", hide_input=True, default="", show_default=False, err=True))
    elif given in (None, "-"):
        given = sys.stdin.readline()
    return given.strip() or None if given is not None else None
