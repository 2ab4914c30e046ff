"""What a command shows to a server, and whom it believes: the same options everywhere."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from dspark.runtime.tls import Tls

_TLS = {
    "tls_ca": "PEM file of the authority servers' certificates must come from; plaintext without any of these",
    "tls_cert": "PEM file of the certificate to show, where servers ask for one",
    "tls_key": "PEM file of its private key",
    "tls_server_name": "name expected in servers' certificates (their address)",
}


def add_options(parser: Any) -> None:
    """--token-file and --tls-*."""
    parser.add_argument("--token-file", type=Path, metavar="FILE", help="secret of the endpoint")
    for key, text in _TLS.items():
        what = "NAME" if key == "tls_server_name" else "FILE"
        parser.add_argument("--" + key.replace("_", "-"), metavar=what, help=text)


def tls_of(args: argparse.Namespace) -> Tls | None:
    """How to call `--endpoint`; None: plaintext."""
    from dspark.runtime.tls import Tls

    given = {key: getattr(args, key, None) for key in _TLS}
    if not any(given.values()):
        return None
    return Tls(given["tls_cert"], given["tls_key"], given["tls_ca"], given["tls_server_name"])
