"""What operators give to reach others by: addresses, and the tokens that go with them."""

from urllib.parse import urlsplit


def is_plain(text: str) -> bool:
    """Whether it is printable ASCII without spaces, which is all that a header takes unchanged."""
    return text.isascii() and text.isprintable() and " " not in text


def host_of(url: str, *, query: bool = False) -> str | None:
    """The host of an http(s) address without user, fragment and (unless allowed) query; else None."""
    if not is_plain(url):
        return None
    try:
        parts = urlsplit(url)
        _ = parts.port
    except ValueError:
        return None
    bare = not (parts.fragment or "@" in parts.netloc or (parts.query and not query))
    return parts.hostname if bare and parts.scheme in {"http", "https"} else None
