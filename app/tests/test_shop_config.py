"""shop.toml: the sample is right, and every mistake is named by its field and never by guesswork."""

from pathlib import Path

import pytest

from standfast.errors import ConfigurationInvalid
from standfast.shop.config import load, parse, sample

SAMPLE = sample()


def test_the_sample_is_the_shop_of_the_story() -> None:
    config = parse(SAMPLE)
    assert [(p.sku, p.opening_stock, p.reorder_point, p.unit_cost_cents) for p in config.product] == [
        ("vanilla", 2, 8, 300),
        ("strawberry", 1, 5, 200),
        ("chocolate", 9, 6, 250),
    ]
    assert config.brief is not None
    assert config.limits.model_calls == 8
    assert config.limits.tool_calls == 16
    assert config.limits.turn_seconds == 120
    assert config.limits.output_tokens == 4096


def test_the_limits_of_the_file_reach_the_loop() -> None:
    limits = parse(SAMPLE.replace("model_calls = 8", "model_calls = 3")).limits.for_loop()
    assert limits.model_calls == 3
    assert limits.seconds == 120.0


def test_brief_and_limits_may_be_left_out() -> None:
    text = SAMPLE[: SAMPLE.index("# What one request")].replace(
        '[brief]\ncron = "30 6 * * *"\nzone = "UTC"\n', ""
    )
    config = parse(text)
    assert config.brief is None
    assert config.intake.daily == 200


@pytest.mark.parametrize(
    ("old", "new", "named"),
    [
        ('name = "Lucy\'s ice cream"', 'name = "L"\ncolour = "red"', "shop.colour: unknown field"),
        ("[shop]", "[shop]\n[extra]\n[shopp]", "extra: unknown field"),
        ("reorder_point = 8", "reorder_point = -1", "product.0.reorder_point"),
        ("reorder_point = 8", 'reorder_point = "8"', "product.0.reorder_point"),
        ("reorder_point = 8", "reorder_point = 8.0", "product.0.reorder_point"),
        ("reorder_point = 8", "reorder_point = true", "product.0.reorder_point"),
        ("reorder_point = 8\n", "", "product.0.reorder_point: required and not there (product vanilla)"),
        ("reorder_point = 5", "reorder_points = 5", "product.1.reorder_points: unknown field (product straw"),
        ("unit_cost_cents = 250", "unit_cost_cents = 0", "product.2.unit_cost_cents"),
        ('sku = "chocolate"', 'sku = "vanilla"', "product.sku: vanilla is there twice"),
        ('sku = "vanilla"', 'sku = "Vanilla ice"', "product.0.sku"),
        (
            'name = "Vanilla"',
            'name = "Va\\nnilla"',
            "product.0.name: must be one line of printable text",
        ),
        ('name = "Vanilla"', 'name = "  "', "product.0.name"),
        ("model_calls = 8", "model_calls = 0", "limits.model_calls"),
        ('zone = "UTC"', 'zone = "Mars/Olympus"', "brief.zone"),
        ('cron = "30 6 * * *"', 'cron = "61 6 * * *"', "brief.cron"),
        ('cron = "30 6 * * *"', 'cron = "0 30 6 * * *"', "brief.cron"),
        ("[shop]", "[shop", "not TOML"),
        ("[shop]", "[shop]\n[shop]", "not TOML"),
    ],
)
def test_a_mistake_is_named_by_its_field(old: str, new: str, named: str) -> None:
    assert old in SAMPLE
    with pytest.raises(ConfigurationInvalid) as caught:
        parse(SAMPLE.replace(old, new, 1))
    assert named in str(caught.value)
    assert caught.value.exit_code == 78


def test_a_file_without_products_is_refused() -> None:
    with pytest.raises(ConfigurationInvalid, match="product: required"):
        parse('[shop]\nname = "x"\n')


def test_an_invalid_file_is_left_as_it_was(tmp_path: Path) -> None:
    path = tmp_path / "shop.toml"
    path.write_text("[shop")
    with pytest.raises(ConfigurationInvalid, match=r"shop\.toml: not TOML"):
        load(path)
    assert path.read_text() == "[shop"


@pytest.mark.parametrize("content", [None, b"\xff[shop]", b"# " + b"x" * 1024 * 1024])
def test_a_file_that_cannot_be_read_is_named(tmp_path: Path, content: bytes | None) -> None:
    path = tmp_path / "shop.toml"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(ConfigurationInvalid, match=r"shop\.toml"):
        load(path)
