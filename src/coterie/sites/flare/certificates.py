"""How FLARE makes the certificates of a deployment: those of sites end early, and are renewed."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

from nvflare.lighter.impl.cert import CertBuilder

from coterie.sites.flare.authority import DAYS


class ShortCertificates(CertBuilder):  # type: ignore[misc]
    """FLARE's builder, but certificates of sites are valid for `DAYS` days."""

    @staticmethod
    def _generate_cert(
        *values: Any,
        ca: bool = False,
        role: Any = None,
        server: Any = None,
        **more: Any,
    ) -> Any:
        if not ca and role is None and server is None:
            more["not_valid_after"] = datetime.now(UTC) + timedelta(days=DAYS)
        return CertBuilder._generate_cert(
            *values, ca=ca, role=role, server=server, **more
        )
