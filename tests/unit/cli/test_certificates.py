"""`dspark certificates`: what a renewal keeps."""

from pathlib import Path

from cryptography import x509

from dspark.cli.certificates import issue


def _names(folder: Path) -> list[str]:
    node = x509.load_pem_x509_certificate((folder / "node.crt").read_bytes())
    names = node.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    return [str(name.value) for name in names]


def test_a_renewal_keeps_hosts_and_tenants_and_takes_more(tmp_path: Path) -> None:
    issue(tmp_path, hosts=["cell.example.org", "10.0.0.7"], tenants=["acme"], days=1)
    (tmp_path / "client-no tenant.crt").touch()
    before = (tmp_path / "client-acme.crt").read_bytes()
    issue(tmp_path, hosts=["two.example.org"], tenants=["globex"], days=1)
    names = _names(tmp_path)
    assert {"cell.example.org", "10.0.0.7", "two.example.org", "localhost"} < set(names)
    assert len(names) == len(set(names))
    assert (tmp_path / "client-acme.crt").read_bytes() != before
    tenants = {path.name for path in tmp_path.glob("client-*.key")}
    assert tenants == {"client-acme.key", "client-globex.key"}
