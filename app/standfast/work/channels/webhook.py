"""A webhook: each report as one JSON POST, with its id as the idempotency key."""

import hashlib
import hmac
import json

from standfast.clock import rfc3339
from standfast.work.channels.access import WebhookAccess
from standfast.work.channels.line import WHOLE_SECONDS, Line
from standfast.work.delivery import Declined, NotSent
from standfast.work.reports import Report

SIGNATURE = "X-Standfast-Signature"
"""``sha256=`` and the hex HMAC-SHA256 of the body under the shared secret."""

_OK, _REDIRECT, _SERVER = 200, 300, 500
_UNCLEAR = {408, 425}
_TOO_MANY = 429


class Webhook:
    """Reports by POST to one address."""

    def __init__(self, access: WebhookAccess, *, seconds: float = WHOLE_SECONDS) -> None:
        self.idempotent = access.idempotent
        self._secret = access.secret.encode()
        self._line = Line(access.url, keep=False, whole_seconds=seconds)

    def close(self) -> None:
        """Close its connections."""
        self._line.close()

    def deliver(self, report: Report) -> None:
        """Raises NotSent, Declined; any other OSError when the receiver may have taken it."""
        body = json.dumps(
            {
                "id": report.id,
                "work": report.work,
                "generation": report.generation,
                "created_at": rfc3339(report.created_at),
                "body": report.body,
            },
            ensure_ascii=False,
        ).encode()
        headers = {"Content-Type": "application/json", "Idempotency-Key": report.id}
        if self._secret:
            headers[SIGNATURE] = "sha256=" + hmac.new(self._secret, body, hashlib.sha256).hexdigest()
        status, _ = self._line.post("/", headers=headers, content=body)
        if _OK <= status < _REDIRECT:
            return
        if status == _TOO_MANY:
            raise NotSent(f"HTTP {status}")
        if status < _SERVER and status not in _UNCLEAR:
            raise Declined(f"HTTP {status}")
        raise OSError(f"HTTP {status}")
