"""Try whether a site reaches its server: the port, and the certificates on both ends. Nothing is sent but the handshake of TLS."""

from __future__ import annotations

import json
import socket
import ssl
from pathlib import Path

from coterie.base.errors import InputError

SECONDS = 10.0


def connect(startup: Path) -> str:
    """A sentence that the server answers, and as whom.

    Args:
        startup: the folder of a site's kit with its certificate.

    Raises:
        InputError: the port cannot be reached, or a certificate is refused, with the cure.
    """
    about = json.loads((startup / "fed_client.json").read_text(encoding="utf-8"))["servers"][0]
    host, _, port = about["service"]["target"].rpartition(":")
    context = ssl.create_default_context(cafile=str(startup / "rootCA.pem"))
    context.load_cert_chain(startup / "client.crt", startup / "client.key")
    try:
        plain = socket.create_connection((host, int(port)), timeout=SECONDS)
    except OSError as error:
        raise InputError(
            f"{host}:{port} cannot be reached ({error.strerror or error}); is the server running, and may this machine reach the port?"
        ) from error
    with plain:
        try:
            with context.wrap_socket(plain, server_hostname=about["identity"]) as secure:
                secure.settimeout(SECONDS)
                _await_refusal(secure)
                return f"{host}:{port} answers as {about['identity']} over {secure.version()}"
        except (ssl.SSLError, TimeoutError, ConnectionError) as error:
            raise InputError(
                f"{host}:{port} and this kit do not accept each other's certificates ({error}); use the kits of one deployment"
            ) from error


def _await_refusal(secure: ssl.SSLSocket) -> None:
    """Let a server refuse: in TLS 1.3 it looks at the certificate of a client when the client has finished."""
    secure.settimeout(1.0)
    try:
        if secure.recv(1) == b"":
            raise ConnectionError("the server hung up")
    except TimeoutError:
        return
