"""`dspark certificates DIR`: creates a private authority and its certificates, to try TLS and for
small cells.

The authority's key is in the same folder. An organisation that has an authority uses that one
instead; the other files are the same. Run again, the command renews all certificates, and keeps the
authority and the hosts and tenants of before.
"""

from __future__ import annotations

import argparse
import datetime
import ipaddress
import re
import socket
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dspark.cli.options import folder, positive
from dspark.errors import ConfigError
from dspark.whole_file import placed

if TYPE_CHECKING:
    from cryptography import x509
    from cryptography.hazmat.primitives.asymmetric import ec

CA_DAYS = 3650
_NAME = re.compile(r"[A-Za-z0-9._-]{1,64}")
_HOST = re.compile(r"(\*\.)?[A-Za-z0-9_-]{1,63}(\.[A-Za-z0-9_-]{1,63})*")


def add_commands(commands: Any) -> None:
    parser = commands.add_parser(
        "certificates",
        help="make an authority and certificates for TLS",
        description="Writes ca.crt, and a certificate and key for processes of the cell (node), "
        "operators, readers of metrics (monitor) and clients. Certificates name a role: "
        "dspark://ROLE/NAME. Run again, it renews them, for the hosts and tenants it was told "
        "before too.",
    )
    add = parser.add_argument
    add("directory", type=folder, help="for the files; made if it is not there")
    add("--host", action="append", default=[], help="name or address of the node; repeatable")
    add("--client", action="append", default=[], help="tenant who gets a certificate; repeatable")
    add("--days", type=positive, default=90, help="until certificates end")
    parser.set_defaults(run=_run)


def _run(args: argparse.Namespace) -> int:
    for path in issue(args.directory, hosts=args.host, tenants=args.client, days=args.days):
        print(path)
    return 0


@dataclass(frozen=True)
class _Pair:
    certificate: x509.Certificate
    key: ec.EllipticCurvePrivateKey


def issue(folder: Path, *, hosts: list[str], tenants: list[str], days: int) -> list[Path]:
    """Writes the files and returns their paths; keys are readable by their owner only."""
    for tenant in tenants:
        if not _NAME.fullmatch(tenant):
            raise ConfigError(
                f"client: {tenant!r} is no tenant's name: letters, digits, dots, dashes, up to 64"
            )
    for host in hosts:
        if not _is_host(host):
            raise ConfigError(f"host: {host!r} is no address, and no name like cell.example.org")
    authority = _load(folder) or _made(None, "dspark development authority", [], CA_DAYS)
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    near = ["localhost", "127.0.0.1", "::1", socket.gethostname()]
    hosts = [*near, *_hosts(folder), *hosts]
    tenants = [*dict.fromkeys([*_tenants(folder), *tenants])] or ["default"]
    wanted = {"node": (hosts, ["worker/node"]), "operator": ([], ["operator/operator"])}
    wanted |= {"monitor": ([], ["monitor/monitor"])}
    wanted |= {f"client-{tenant}": ([], [f"client/{tenant}"]) for tenant in tenants}
    written = _write(folder, "ca", authority)
    for name, (reached, roles) in wanted.items():
        names = [*dict.fromkeys(reached), *(f"dspark://{role}" for role in roles)]
        written += _write(folder, name, _made(authority, f"dspark {name}", names, days))
    return written


def _is_host(name: str) -> bool:
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return _HOST.fullmatch(name) is not None
    return True


def _hosts(folder: Path) -> list[str]:
    """The names and addresses in the folder's certificate of the node; none if it cannot be
    read."""
    from cryptography import x509

    try:
        node = x509.load_pem_x509_certificate((folder / "node.crt").read_bytes())
        names = node.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    except (OSError, ValueError, x509.ExtensionNotFound):
        return []
    addresses = map(str, names.get_values_for_type(x509.IPAddress))
    return [*names.get_values_for_type(x509.DNSName), *addresses]


def _tenants(folder: Path) -> list[str]:
    """The tenants who have a certificate in the folder."""
    found = sorted(path.stem.removeprefix("client-") for path in folder.glob("client-*.crt"))
    return [tenant for tenant in found if _NAME.fullmatch(tenant)]


def _made(authority: _Pair | None, name: str, names: list[str], days: int) -> _Pair:
    """A certificate signed by `authority`, None: a new authority. All TLS libraries know P-256."""
    from cryptography import x509
    from cryptography.hazmat.primitives import hashes
    from cryptography.hazmat.primitives.asymmetric import ec
    from cryptography.x509.oid import ExtendedKeyUsageOID

    key = ec.generate_private_key(ec.SECP256R1())
    subject = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, name)])
    signer = authority.key if authority else key
    now = datetime.datetime.now(datetime.UTC)
    ends = now + datetime.timedelta(days=min(days, CA_DAYS))
    if authority is not None:  # without it no certificate of its holds
        ends = min(ends, authority.certificate.not_valid_after_utc)
    never = ("content_commitment", "key_encipherment", "data_encipherment", "key_agreement")
    unused = dict.fromkeys((*never, "encipher_only", "decipher_only"), False)
    signs = authority is None
    usage = x509.KeyUsage(
        digital_signature=not signs, key_cert_sign=signs, crl_sign=signs, **unused
    )
    builder = (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(authority.certificate.subject if authority else subject)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(minutes=5))  # clocks differ
        .not_valid_after(ends)
        .add_extension(x509.BasicConstraints(ca=signs, path_length=None), critical=True)
        .add_extension(usage, critical=True)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
        .add_extension(
            x509.AuthorityKeyIdentifier.from_issuer_public_key(signer.public_key()), critical=False
        )
    )
    if authority is not None:
        purposes = [ExtendedKeyUsageOID.CLIENT_AUTH]
        if any("://" not in one for one in names):
            purposes.append(ExtendedKeyUsageOID.SERVER_AUTH)
        builder = builder.add_extension(x509.ExtendedKeyUsage(purposes), critical=False)
        builder = builder.add_extension(
            x509.SubjectAlternativeName([_alternative(n) for n in names]), critical=False
        )
    return _Pair(builder.sign(signer, hashes.SHA256()), key)


def _alternative(name: str) -> x509.GeneralName:
    from cryptography import x509

    if "://" in name:
        return x509.UniformResourceIdentifier(name)
    try:
        return x509.IPAddress(ipaddress.ip_address(name))
    except ValueError:
        return x509.DNSName(name)


def _load(folder: Path) -> _Pair | None:
    """The authority in the folder; None if there is none, ConfigError if it is none."""
    from cryptography import x509
    from cryptography.hazmat.primitives import serialization
    from cryptography.hazmat.primitives.asymmetric import ec

    if not (folder / "ca.key").exists():
        if (folder / "ca.crt").exists():  # a new one in its place would end every cell that has it
            raise ConfigError(
                f"{folder}: ca.crt is there and ca.key, which signs, is not; bring it back, or "
                "name another folder for a new authority"
            )
        return None
    try:
        key = serialization.load_pem_private_key((folder / "ca.key").read_bytes(), password=None)
        certificate = x509.load_pem_x509_certificate((folder / "ca.crt").read_bytes())
    except (ValueError, TypeError) as error:  # an OSError names its file
        raise ConfigError(f"{folder}: ca.key and ca.crt cannot be read ({error})") from error
    if not isinstance(key, ec.EllipticCurvePrivateKey):
        raise ConfigError(
            f"{folder}: ca.key is of another kind than those made here, of an elliptic curve"
        )
    if certificate.public_key() != key.public_key():
        raise ConfigError(f"{folder}: ca.key is not the key of ca.crt")
    if (ended := certificate.not_valid_after_utc) < datetime.datetime.now(datetime.UTC):
        raise ConfigError(
            f"{folder}: ca.crt ended on {ended:%Y-%m-%d}, and so has all that it signs; name "
            "another folder for a new authority"
        )
    return _Pair(certificate, key)


def _write(folder: Path, name: str, pair: _Pair) -> list[Path]:
    from cryptography.hazmat.primitives import serialization

    key = pair.key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    content = {f"{name}.key": (key, 0o600)}
    content[f"{name}.crt"] = (pair.certificate.public_bytes(serialization.Encoding.PEM), 0o644)
    for file, (data, mode) in content.items():
        with placed(folder / file, mode=mode) as fresh:  # running servers never see half a file
            fresh.write_bytes(data)
    return [folder / file for file in content]
