"""`dspark certificates`: what a renewal keeps."""

from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import rsa

from dspark.cli import certificates
from dspark.cli.certificates import issue
from dspark.cli.main import main
from dspark.errors import ConfigError


def test_a_renewal_keeps_hosts_and_tenants_and_takes_more(tmp_path: Path) -> None:
    issue(tmp_path, hosts=["cell.example.org", "10.0.0.7"], tenants=["acme"], days=1)
    (tmp_path / "client-no tenant.crt").touch()
    before = (tmp_path / "client-acme.crt").read_bytes()
    issue(tmp_path, hosts=["two.example.org"], tenants=["globex"], days=1)
    node = x509.load_pem_x509_certificate((tmp_path / "node.crt").read_bytes())
    told = node.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    names = [str(name.value) for name in told]
    assert {"cell.example.org", "10.0.0.7", "two.example.org", "localhost"} < set(names)
    assert len(names) == len(set(names))
    assert (tmp_path / "client-acme.crt").read_bytes() != before
    tenants = {path.name for path in tmp_path.glob("client-*.key")}
    assert tenants == {"client-acme.key", "client-globex.key"}


def test_a_file_of_the_authority_that_is_gone_is_named_once(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    issue(tmp_path, hosts=[], tenants=[], days=1)
    (tmp_path / "ca.crt").unlink()
    assert main(["certificates", str(tmp_path)]) == 1
    assert capsys.readouterr().err == f"dspark: {tmp_path}/ca.crt: No such file or directory\n"


def test_an_authority_that_cannot_sign_is_neither_used_nor_replaced(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(certificates, "CA_DAYS", 0)
    key, crt, *_ = issue(tmp_path, hosts=[], tenants=[], days=1)
    before = crt.read_bytes()
    with pytest.raises(ConfigError, match=r"ca\.crt ended on 20\d\d-\d\d-\d\d"):
        issue(tmp_path, hosts=[], tenants=[], days=1)
    key.unlink()  # to keep it away from the cell
    with pytest.raises(ConfigError, match=r"ca\.crt is there and ca\.key, which signs, is not"):
        issue(tmp_path, hosts=[], tenants=[], days=1)
    assert crt.read_bytes() == before


def test_a_certificate_ends_with_its_authority_at_the_latest(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for authority_days in (2, 3650):  # the one of the first run stays
        monkeypatch.setattr(certificates, "CA_DAYS", authority_days)
        _, *files = issue(tmp_path, hosts=[], tenants=[], days=90_000_000)
    ca, node = (x509.load_pem_x509_certificate(file.read_bytes()) for file in files[:3:2])
    assert node.not_valid_after_utc == ca.not_valid_after_utc


def test_an_authority_of_another_kind_is_not_taken_for_one_whose_files_do_not_match(
    tmp_path: Path,
) -> None:
    issue(tmp_path, hosts=[], tenants=[], days=1)
    made = rsa.generate_private_key(65537, 2048)
    plain = serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    (tmp_path / "ca.key").write_bytes(made.private_bytes(serialization.Encoding.PEM, *plain))
    with pytest.raises(ConfigError, match=r"ca\.key is of another kind than those made here"):
        issue(tmp_path, hosts=[], tenants=[], days=1)


@pytest.mark.parametrize("host", ["", "https://a.b:7000", "not a host!", "a.b:7000", "bücher.de"])
def test_what_is_no_host_is_refused_before_anything_is_written(tmp_path: Path, host: str) -> None:
    with pytest.raises(ConfigError, match=r"host: .* is no address"):
        issue(tmp_path / "new", hosts=["::1", "*.example.org", host], tenants=[], days=1)
    assert not (tmp_path / "new").exists()
