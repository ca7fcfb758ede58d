"""`grpcs://`: the server's certificate is checked, and the gateway shows its own where asked."""

from __future__ import annotations

import datetime
import ipaddress
from collections.abc import Iterator
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from gateway.backends._address import TlsConfig
from gateway.core.errors import AttemptError
from gateway.demo.triton import TritonServer
from oip.reasons import Reason
from tests.support.permits import PERMIT
from tests.support.triton import REPOSITORY, output0, slow_body, triton_endpoint


class Authority:
    """A throw-away certificate authority that writes PEM files into a folder."""

    def __init__(self, folder: Path, name: str) -> None:
        self._folder = folder
        self._key = ec.generate_private_key(ec.SECP256R1())
        self._name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
        certificate = (
            self._builder(self._name, self._key)
            .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
            .sign(self._key, hashes.SHA256())
        )
        self.file = self._write(f"{name}.pem", certificate.public_bytes(serialization.Encoding.PEM))

    def issue(self, name: str) -> tuple[str, str]:
        """Certificate and key files for 127.0.0.1."""
        key = ec.generate_private_key(ec.SECP256R1())
        subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
        address = x509.SubjectAlternativeName([x509.IPAddress(ipaddress.ip_address("127.0.0.1"))])
        certificate = (
            self._builder(subject, key)
            .add_extension(address, critical=False)
            .sign(self._key, hashes.SHA256())
        )
        private = key.private_bytes(
            serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
        )
        return (
            self._write(f"{name}.crt", certificate.public_bytes(serialization.Encoding.PEM)),
            self._write(f"{name}.key", private),
        )

    def _builder(self, subject: x509.Name, key: ec.EllipticCurvePrivateKey) -> x509.CertificateBuilder:
        now = datetime.datetime.now(datetime.UTC)
        return (
            x509.CertificateBuilder()
            .subject_name(subject)
            .issuer_name(self._name)
            .public_key(key.public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(now - datetime.timedelta(hours=1))
            .not_valid_after(now + datetime.timedelta(hours=1))
        )

    def _write(self, name: str, content: bytes) -> str:
        path = self._folder / name
        path.write_bytes(content)
        return str(path)


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("tls"), "authority")


@pytest.fixture(scope="module")
def triton(authority: Authority) -> Iterator[TritonServer]:
    certificate, key = authority.issue("server")
    server = TritonServer(
        REPOSITORY,
        load=["slow_identity"],
        extra_args=[
            "--grpc-use-ssl=true",
            "--grpc-use-ssl-mutual=true",
            f"--grpc-server-cert={certificate}",
            f"--grpc-server-key={key}",
            f"--grpc-root-cert={authority.file}",
        ],
    )
    server.start()
    yield server
    server.kill()


async def test_both_sides_know_each_other(authority: Authority, triton: TritonServer):
    certificate, key = authority.issue("gateway")
    tls = TlsConfig(ca_file=authority.file, cert_file=certificate, key_file=key)
    endpoint = triton_endpoint(triton.grpc_port, tls=tls)
    await endpoint.start()
    assert output0(await endpoint.infer(slow_body(0, value=3), (), 10, PERMIT), "int32").tolist() == [3]
    assert (await endpoint.health([("slow_identity", "")], 5)).models[0].ready
    await endpoint.close()


@pytest.mark.parametrize("fault", ["no certificate of its own", "a stranger's authority", "no TLS"])
async def test_without_that_nothing_is_sent(
    authority: Authority, triton: TritonServer, tmp_path: Path, fault: str
):
    certificate, key = authority.issue("gateway")
    tls = {
        "no certificate of its own": TlsConfig(ca_file=authority.file),
        "a stranger's authority": TlsConfig(
            ca_file=Authority(tmp_path, "stranger").file, cert_file=certificate, key_file=key
        ),
        "no TLS": None,
    }[fault]
    endpoint = triton_endpoint(triton.grpc_port, tls=tls)
    await endpoint.start()
    with pytest.raises(AttemptError) as caught:
        await endpoint.infer(slow_body(0), (), 3, PERMIT)
    await endpoint.close()
    assert caught.value.reason is Reason.UNAVAILABLE
    assert caught.value.retryable
