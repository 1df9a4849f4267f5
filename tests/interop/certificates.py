"""`certificates.py FOLDER`: an authority (`ca.pem`) and what it certifies for 127.0.0.1 (`cert.pem`, `key.pem`), for a day."""
import datetime
import ipaddress
import pathlib
import sys

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

folder, day = pathlib.Path(sys.argv[1]), datetime.timedelta(1)
now = datetime.datetime.now(datetime.timezone.utc)
authority, server = ec.generate_private_key(ec.SECP256R1()), ec.generate_private_key(ec.SECP256R1())


def certificate(subject, key, *extensions):
    names = [x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)]) for name in (subject, "authority")]
    builder = x509.CertificateBuilder().subject_name(names[0]).issuer_name(names[1]).public_key(key.public_key())
    builder = builder.serial_number(x509.random_serial_number()).not_valid_before(now - day).not_valid_after(now + day)
    for extension in extensions:
        builder = builder.add_extension(extension, critical=True)
    return builder.sign(authority, hashes.SHA256()).public_bytes(serialization.Encoding.PEM)


(folder / "ca.pem").write_bytes(certificate("authority", authority, x509.BasicConstraints(True, None)))
address = x509.SubjectAlternativeName([x509.IPAddress(ipaddress.ip_address("127.0.0.1"))])
(folder / "cert.pem").write_bytes(certificate("server", server, x509.BasicConstraints(False, None), address))
(folder / "key.pem").write_bytes(server.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()))
