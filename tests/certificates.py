"""Certificates for tests: two authorities that know nothing of each other."""

import ssl
from collections.abc import Sequence
from pathlib import Path

from dspark.cli.certificates import issue
from dspark.runtime.tls import Tls


class Authority:
    """One folder of `dspark certificates`."""

    def __init__(self, folder: Path, tenants: Sequence[str] = ("acme",)) -> None:
        self.folder = folder
        self._tenants = list(tenants)
        self.renew()

    def renew(self) -> None:
        """New certificates of the same authority, in the same files."""
        issue(self.folder, hosts=[], tenants=self._tenants, days=1)

    def replace(self) -> None:
        """Another authority, and its certificates, in the same files."""
        for file in self.folder.iterdir():
            file.unlink()
        self.renew()

    def tls(self, name: str | None = "node") -> Tls:
        """What the holder of a certificate knows; without a name, whoever has the authority's
        certificate only."""
        ca = self.path("ca.crt")
        return Tls(self.path(f"{name}.crt"), self.path(f"{name}.key"), ca) if name else Tls(ca=ca)

    def context(self, name: str | None = None) -> ssl.SSLContext:
        """The same for HTTPS."""
        made = ssl.create_default_context(cafile=self.path("ca.crt"))
        if name is not None:
            made.load_cert_chain(self.path(f"{name}.crt"), self.path(f"{name}.key"))
        return made

    def shown(self, endpoint: str) -> str:
        """The certificate that a server shows to a new connection, which need not show one."""
        host, _, port = endpoint.rpartition(":")
        return ssl.get_server_certificate((host, int(port)), ca_certs=self.path("ca.crt"))

    def check_renewal(self, endpoint: str) -> None:
        """A server there takes new certificates, and files that do not fit each other change
        nothing."""
        before = self.shown(endpoint)
        self.spoil("node.crt")
        assert self.shown(endpoint) == before
        self.renew()
        assert self.shown(endpoint) != before

    def path(self, file: str) -> str:
        return str(self.folder / file)

    def spoil(self, file: str) -> None:
        """As it looks in the middle of a careless copy."""
        Path(self.path(file)).write_text("half a file")

    def remove(self, file: str) -> None:
        """As a copy begins that puts another file in its place."""
        Path(self.path(file)).unlink()

    def settings(self) -> dict[str, str]:
        """The keys of a process's configuration."""
        return {
            "tls_cert": self.path("node.crt"),
            "tls_key": self.path("node.key"),
            "tls_ca": self.path("ca.crt"),
        }
