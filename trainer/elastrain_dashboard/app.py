"""The options of ``elastrain dashboard``."""

from __future__ import annotations

from typing import Annotated

import typer

from elastrain_cli.cluster import app as cluster
from elastrain_cli.shell.manual import Program

app = Program(add_completion=False)


@app.command()
def dashboard(
    *,
    namespaces: Annotated[
        list[str] | None,
        typer.Option("--namespace", "-n", help="May be repeated. Default: the namespace of the kubeconfig's context."),
    ] = None,
    all_namespaces: Annotated[
        bool, typer.Option("--all-namespaces", "-A", help="Show the jobs of all namespaces.")
    ] = False,
    port: Annotated[int, typer.Option(help="TCP port. 0: any free port.", min=0, max=65535)] = 8090,
    address: Annotated[
        str, typer.Option(help="Address to listen at; empty: all. Default: this host only.")
    ] = "127.0.0.1",
    key: Annotated[bool, typer.Option("--key/--no-key", help="Put an access key into the printed address.")] = True,
    authenticate: Annotated[
        bool,
        typer.Option(
            "--authenticate",
            help="Instead of the key: users log in with a token of the cluster, and each sees the namespaces that its "
            "own rights allow. Needs the right to create tokenreviews and subjectaccessreviews.",
        ),
    ] = False,
    hosts: Annotated[
        list[str] | None,
        typer.Option("--host", help="A name by which browsers reach the page, beside localhost and addresses."),
    ] = None,
    context: cluster.Context = None,
) -> None:
    """Serve a live page about the jobs until Ctrl-C: state, accelerators, every rescale, losses. The dashboard only
    reads, with your own permissions, and installs nothing on the cluster.

    Examples: elastrain dashboard, elastrain dashboard -A, elastrain dashboard -n research --port 0
    """
    from elastrain_cli.cluster.output import Place
    from elastrain_dashboard.command import dashboard as run

    raise typer.Exit(
        run(
            Place(None, context),
            () if all_namespaces else tuple(namespaces or ()),
            all_namespaces=all_namespaces,
            address=address,
            port=port,
            keyed=key and not authenticate,
            authenticate=authenticate,
            hosts=tuple(hosts or ()),
        )
    )
