"""The certificate authority of one federation; it vouches for nobody outside of it."""

from __future__ import annotations

import ipaddress
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

AUTHORITY_DAYS = 3650
CERTIFICATE_DAYS = 365
CLOCKS_APART = timedelta(days=2)
"""A certificate counts from so long before it was made: clocks of members differ, or are set wrong."""


@dataclass(frozen=True)
class KeyPair:
    """A certificate and its private key, as PEM texts."""

    certificate: str
    key: str

    @property
    def expires(self) -> datetime:
        return expiry(self.certificate)


def expiry(certificate: str) -> datetime:
    """When the first certificate of a PEM text ends."""
    return x509.load_pem_x509_certificate(certificate.encode()).not_valid_after_utc


def make_authority(name: str) -> KeyPair:
    """A new authority, which has signed itself."""
    key = ec.generate_private_key(ec.SECP256R1())
    return _signed(name, key, None, [], AUTHORITY_DAYS)


def issue(authority: KeyPair, name: str, addresses: list[str] | None = None) -> KeyPair:
    """A certificate of `name` for a client, or with addresses for the server that is found there."""
    return _signed(name, ec.generate_private_key(ec.SECP256R1()), authority, addresses or [])


def _signed(
    name: str,
    key: ec.EllipticCurvePrivateKey,
    authority: KeyPair | None,
    addresses: list[str],
    days: float = CERTIFICATE_DAYS,
) -> KeyPair:
    own = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
    issuer, signer = own, key
    if authority is not None:
        issuer = x509.load_pem_x509_certificate(authority.certificate.encode()).subject
        loaded = serialization.load_pem_private_key(authority.key.encode(), None)
        assert isinstance(loaded, ec.EllipticCurvePrivateKey)
        signer = loaded
    now = datetime.now(UTC)
    builder = (
        x509.CertificateBuilder()
        .subject_name(own)
        .issuer_name(issuer)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - CLOCKS_APART)
        .not_valid_after(now + timedelta(days=days))
    )
    for extension, critical in _extensions(key, signer, authority is None, addresses):
        builder = builder.add_extension(extension, critical=critical)
    return KeyPair(
        builder.sign(signer, hashes.SHA256()).public_bytes(serialization.Encoding.PEM).decode(),
        key.private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.PKCS8,
            serialization.NoEncryption(),
        ).decode(),
    )


def _extensions(
    key: ec.EllipticCurvePrivateKey,
    signer: ec.EllipticCurvePrivateKey,
    authority: bool,
    addresses: list[str],
) -> list[tuple[x509.ExtensionType, bool]]:
    """What the certificate is good for: signing others, being dialled, or dialling."""
    usage = x509.KeyUsage(
        digital_signature=True,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        key_cert_sign=authority,
        crl_sign=authority,
        encipher_only=False,
        decipher_only=False,
    )
    found: list[tuple[x509.ExtensionType, bool]] = [
        (x509.BasicConstraints(ca=authority, path_length=0 if authority else None), True),
        (usage, True),
        (x509.SubjectKeyIdentifier.from_public_key(key.public_key()), False),
        (x509.AuthorityKeyIdentifier.from_issuer_public_key(signer.public_key()), False),
    ]
    if not authority:
        role = ExtendedKeyUsageOID.SERVER_AUTH if addresses else ExtendedKeyUsageOID.CLIENT_AUTH
        found.append((x509.ExtendedKeyUsage([role]), False))
    if addresses:
        found.append((x509.SubjectAlternativeName([_name(one) for one in addresses]), False))
    return found


def _name(address: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(address))
    except ValueError:
        return x509.DNSName(address)
