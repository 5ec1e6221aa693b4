"""The instance's own shop.toml, as commands read it. Apart from opening: health pays for none of it."""

from standfast.errors import BadInput, ConfigurationInvalid
from standfast.layout import Layout
from standfast.shop import config
from standfast.shop.config import ShopConfig


def shop_config(layout: Layout) -> ShopConfig:
    """The instance's shop.toml; BadInput when it is invalid."""
    try:
        return config.load(layout.shop)
    except ConfigurationInvalid as error:
        raise BadInput(str(error)) from error
