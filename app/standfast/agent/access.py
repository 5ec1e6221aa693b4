"""Where a live model is and how to enter it: three variables of ``agent.env``, checked before a start.

Nothing is imported here that a service without a live model does not need.
"""

import importlib.util
import ipaddress
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal, Self

from standfast.address import host_of, is_plain
from standfast.errors import ConfigurationInvalid

MODEL = "STANDFAST_MODEL"
URL = "STANDFAST_MODEL_URL"
KEY = "STANDFAST_MODEL_KEY"
OFFLINE = "offline"
"""What STANDFAST_MODEL says to ask the offline planner, whatever else is set."""
NO_KEY = "none"
"""What STANDFAST_MODEL_KEY says of an endpoint that takes no key: then none is sent."""

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._:/@-]{0,127}")

type OutputField = Literal["max_completion_tokens", "max_tokens"]
"""What an endpoint calls its limit of output tokens: the present name, or the one before it."""


@dataclass(frozen=True, slots=True)
class LiveAccess:
    """One live model behind one endpoint."""

    model: str
    url: str
    """The base of the protocol's paths, mostly ending in ``/v1``."""
    key: str | None = field(repr=False)
    """None: the endpoint takes none."""
    output_field: OutputField = "max_completion_tokens"

    @classmethod
    def from_environment(
        cls, environment: Mapping[str, str], output_field: OutputField = "max_completion_tokens"
    ) -> Self | None:
        """None when no live model is asked for. ConfigurationInvalid names a variable, never its value.

        No key and no model at all is a normal condition: the offline planner answers then.
        """
        model, url, key = (environment.get(name, "") for name in (MODEL, URL, KEY))
        if model == OFFLINE or not (model or url or key):
            return None
        _all_set(model, url, key)
        if not _NAME.fullmatch(model):
            raise ConfigurationInvalid(f"{MODEL}: 1 to 128 letters, digits and . _ : / @ -")
        if not is_plain(key):
            raise ConfigurationInvalid(f"{KEY}: printable ASCII without spaces")
        _check_url(url, has_key=key != NO_KEY)
        if importlib.util.find_spec("openai") is None:
            raise ConfigurationInvalid(
                f"{MODEL}: this release cannot ask a live model: build it with `--extra live`, or set"
                f" {MODEL} to {OFFLINE}"
            )
        return cls(model, url.rstrip("/"), None if key == NO_KEY else key, output_field)


def _all_set(model: str, url: str, key: str) -> None:
    if not model:
        raise ConfigurationInvalid(f"{MODEL}: must name the model when {URL} or {KEY} is set")
    if not url:
        raise ConfigurationInvalid(f"{URL}: must be set with {MODEL}: the endpoint's base, with its /v1")
    if not key:
        raise ConfigurationInvalid(
            f"{KEY}: must be set with {MODEL}; for an endpoint that takes no key, the word {NO_KEY} says so"
        )


def _check_url(url: str, *, has_key: bool) -> None:
    host = host_of(url)
    if host is None:
        raise ConfigurationInvalid(f"{URL}: http:// or https://, a host, no user, query or fragment")
    if has_key and not url.startswith("https://") and not _is_loopback(host):
        raise ConfigurationInvalid(f"{URL}: over http:// the key would cross the network in the clear")


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"
