"""An authority of our own, and a certificate of it for the broker's host. Needs `cryptography`.

The broker's certificate also serves as a client's, with which it and its controller know each other.
"""

import datetime as dt
import ipaddress
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric.ec import SECP256R1, EllipticCurvePrivateKey, generate_private_key
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from app.broker.private import BROKER, CA, SUBJECT, write_private

__all__ = ["ensure_certificates"]

CA_KEY = "ca-key.pem"
AUTHORITY = "headrace embedded broker"
CA_DAYS = 3650
BROKER_DAYS = 820
"""Some clients refuse more than 825 days."""
RENEW_DAYS = 30
"""A certificate that ends sooner is made anew at a start."""


def ensure_certificates(folder: Path, host: str, now: dt.datetime | None = None) -> None:
    """Makes what is missing, for another host or about to end; clients that trust the authority go on.

    Raises:
        OSError: a file can't be read or written.
        ValueError: a file isn't what it should be.
    """
    now = now or dt.datetime.now(dt.UTC)
    if not (folder / CA).exists() or not (folder / CA_KEY).exists():
        _make_authority(folder, now)
    wanted = _names(host)
    if not _is_good(folder / BROKER, wanted, now):
        _issue(folder, wanted, now)


def _names(host: str) -> x509.SubjectAlternativeName:
    """The host, and how this machine reaches itself."""
    names: list[x509.GeneralName] = [
        x509.DNSName("localhost"),
        x509.IPAddress(ipaddress.ip_address("127.0.0.1")),
        x509.IPAddress(ipaddress.ip_address("::1")),
    ]
    try:
        names.append(x509.IPAddress(ipaddress.ip_address(host)))
    except ValueError:
        names.append(x509.DNSName(host))
    return x509.SubjectAlternativeName(list(dict.fromkeys(names)))


def _is_good(file: Path, wanted: x509.SubjectAlternativeName, now: dt.datetime) -> bool:
    if not file.exists():
        return False
    old = x509.load_pem_x509_certificate(file.read_bytes())
    names = old.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    return names == wanted and old.not_valid_after_utc - now > dt.timedelta(days=RENEW_DAYS)


def _begun(subject: str, key: EllipticCurvePrivateKey, now: dt.datetime, days: int) -> x509.CertificateBuilder:
    return (
        x509.CertificateBuilder()
        .subject_name(_name(subject))
        .issuer_name(_name(AUTHORITY))
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - dt.timedelta(days=1))
        .not_valid_after(now + dt.timedelta(days=days))
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
    )


def _name(common: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, common)])


def _make_authority(folder: Path, now: dt.datetime) -> None:
    key = generate_private_key(SECP256R1())
    usage = x509.KeyUsage(
        digital_signature=False, content_commitment=False, key_encipherment=False, data_encipherment=False,
        key_agreement=False, key_cert_sign=True, crl_sign=True, encipher_only=False, decipher_only=False,
    )  # fmt: skip
    certificate = (
        _begun(AUTHORITY, key, now, CA_DAYS)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(usage, critical=True)
        .sign(key, hashes.SHA256())
    )
    (folder / BROKER).unlink(missing_ok=True)  # of an authority that is gone
    write_private(folder / CA_KEY, _key_pem(key))
    (folder / CA).write_bytes(certificate.public_bytes(serialization.Encoding.PEM))


def _issue(folder: Path, names: x509.SubjectAlternativeName, now: dt.datetime) -> None:
    ca_key = serialization.load_pem_private_key((folder / CA_KEY).read_bytes(), password=None)
    if not isinstance(ca_key, EllipticCurvePrivateKey):
        raise ValueError(f"{CA_KEY} is no key of ours")  # noqa: TRY004  # a file's content, not an argument's type
    key = generate_private_key(SECP256R1())
    uses = x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH, ExtendedKeyUsageOID.CLIENT_AUTH])
    certificate = (
        _begun(SUBJECT, key, now, BROKER_DAYS)
        .add_extension(names, critical=False)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(uses, critical=False)
        .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(ca_key.public_key()), critical=False)
        .sign(ca_key, hashes.SHA256())
    )
    write_private(folder / BROKER, _key_pem(key) + certificate.public_bytes(serialization.Encoding.PEM).decode())


def _key_pem(key: EllipticCurvePrivateKey) -> str:
    plain, form = serialization.NoEncryption(), serialization.PrivateFormat.PKCS8
    return key.private_bytes(serialization.Encoding.PEM, form, plain).decode()
