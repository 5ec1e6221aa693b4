"""``shop.toml``: catalogue, opening stock, the brief's time and the limits, read once and checked whole."""

import re
import time
import tomllib
from importlib import resources
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationError, model_validator

from standfast.agent import Limits
from standfast.agent.access import OutputField
from standfast.agent.usage.allowance import Ceilings, Prices
from standfast.errors import BadInput, ConfigurationInvalid
from standfast.orders.policy import Policy
from standfast.work import cron as crons

MAX_BYTES = 1024 * 1024
MAX_STOCK = 1_000_000


def _printable(text: str) -> str:
    if not text.isprintable() or not text.strip():
        raise ValueError("must be one line of printable text")
    return text


_SKU = re.compile(r"[a-z0-9][a-z0-9-]{0,39}")
type Sku = Annotated[str, Field(pattern=f"^{_SKU.pattern}$")]
type Line = Annotated[str, Field(min_length=1, max_length=80), AfterValidator(_printable)]
type Count = Annotated[int, Field(ge=0, le=MAX_STOCK)]


class _Table(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)


class Shop(_Table):
    """Whose shop this is."""

    name: Line


def _comes_due(cron: str) -> str:
    return _scheduled(cron, cron, "UTC")


def _known_zone(zone: str) -> str:
    return _scheduled(zone, "0 0 * * *", zone)


def _scheduled(value: str, cron: str, zone: str) -> str:
    try:
        crons.check(cron, zone, time.time())
    except BadInput as error:
        raise ValueError(str(error).partition(": ")[2]) from error
    return value


class Brief(_Table):
    """When the morning brief is due."""

    cron: Annotated[str, AfterValidator(_comes_due)]
    """Five cron fields."""
    zone: Annotated[str, AfterValidator(_known_zone)]
    """IANA time zone in which they are meant."""


class Product(_Table):
    """One line of the catalogue."""

    sku: Sku
    name: Line
    opening_stock: Count
    """On hand when the product is first seen; counted once."""
    reorder_point: Count
    unit_cost_cents: Annotated[int, Field(ge=1, le=100_000_000)]


class TurnLimits(_Table):
    """What one request may use."""

    model_calls: Annotated[int, Field(ge=1, le=100)] = 8
    tool_calls: Annotated[int, Field(ge=1, le=1000)] = 16
    turn_seconds: Annotated[int, Field(ge=1, le=3600)] = 120
    call_seconds: Annotated[int, Field(ge=1, le=3600)] = 45
    context_bytes: Annotated[int, Field(ge=4096, le=16 * 1024 * 1024)] = 256 * 1024
    call_output_tokens: Annotated[int, Field(ge=1, le=1_000_000)] = 2048
    output_tokens: Annotated[int, Field(ge=1, le=1_000_000)] = 4096

    def for_loop(self) -> Limits:
        """The same limits as the loop takes them."""
        return Limits(
            model_calls=self.model_calls,
            tool_calls=self.tool_calls,
            seconds=float(self.turn_seconds),
            call_seconds=float(self.call_seconds),
            context_bytes=self.context_bytes,
            call_output_tokens=self.call_output_tokens,
            output_tokens=self.output_tokens,
        )


class IntakeLimits(_Table):
    """How much one session may ask."""

    daily: Annotated[int, Field(ge=1, le=1_000_000)] = 200
    pending: Annotated[int, Field(ge=1, le=100_000)] = 20


class Spending(_Table):
    """What may be bought, and for how much. Without this table nothing may."""

    currency: Annotated[str, Field(pattern=r"^[A-Z]{3}$")]
    target: Annotated[str, Field(pattern=r"^[a-z0-9][a-z0-9._-]{0,63}$")]
    """The supplier's name, part of what an approval covers."""
    ceiling_cents: Annotated[int, Field(ge=0, le=1_000_000_000_000)]
    """The most that is reserved, or was spent on one UTC day, at any moment."""
    allowance_cents: Annotated[int, Field(ge=0, le=1_000_000_000_000)] = 0
    """How much of it a day's orders may use without an operator's approval."""


class Recovery(_Table):
    """What a recovery takes for a present observation."""

    observation_seconds: Annotated[int, Field(ge=60, le=86_400)] = 900
    """The oldest that the plan's observation may be."""


type Cents = Annotated[int, Field(ge=0, le=1_000_000_000_000)]


class ModelTable(_Table):
    """What a live model costs and may use. Days are UTC days. The offline planner is not concerned."""

    input_cents: Cents | None = None
    """For a million input tokens. Without it and output_cents no cost is known."""
    cached_cents: Cents | None = None
    """For a million input tokens that the provider had cached; as input_cents when not given."""
    output_cents: Cents | None = None
    """For a million output tokens."""
    daily_calls: Annotated[int, Field(ge=0, le=1_000_000)] = 500
    daily_tokens: Annotated[int, Field(ge=0, le=1_000_000_000_000)] | None = None
    """Input and output together."""
    daily_cents: Cents | None = None
    work_cents: Cents | None = None
    """For one request, over all its calls."""
    output_field: OutputField = "max_completion_tokens"

    @model_validator(mode="after")
    def _prices_come_together(self) -> "ModelTable":
        if (self.input_cents is None) != (self.output_cents is None):
            raise ValueError("input_cents and output_cents: one is missing")
        if self.input_cents is None and self.cached_cents is not None:
            raise ValueError("cached_cents: needs input_cents and output_cents")
        for name in ("daily_cents", "work_cents"):
            if getattr(self, name) is not None and self.input_cents is None:
                raise ValueError(f"{name}: needs the prices input_cents and output_cents")
        return self

    @property
    def prices(self) -> Prices | None:
        """None when none are given."""
        if self.input_cents is None or self.output_cents is None:
            return None
        cached = self.input_cents if self.cached_cents is None else self.cached_cents
        return Prices(self.input_cents, cached, self.output_cents)

    @property
    def ceilings(self) -> Ceilings:
        """The most that may be used."""
        return Ceilings(self.daily_calls, self.daily_tokens, self.daily_cents, self.work_cents)


type OperatorName = Annotated[str, Field(pattern=r"^[a-z_][a-z0-9_.@-]{0,63}$")]


class Operators(_Table):
    """Who may approve."""

    allowed: Annotated[tuple[OperatorName, ...], Field(max_length=100, strict=False)] = ()
    telegram: Annotated[
        dict[Annotated[str, Field(pattern=r"^[1-9][0-9]{0,17}$")], OperatorName], Field(max_length=100)
    ] = {}
    """Telegram's number of a person -> which of the allowed operators that is."""

    @model_validator(mode="after")
    def _telegram_names_are_allowed(self) -> "Operators":
        if strange := sorted(set(self.telegram.values()) - set(self.allowed)):
            raise ValueError(f"telegram: {', '.join(strange)} must be among allowed")
        return self


class ChannelTable(_Table):
    """Where reports go, and what may come in there. Secrets are in agent.env, never here."""

    kind: Literal["outbox", "telegram", "webhook"] = "outbox"
    webhook_idempotent: bool = False
    """The receiver gives one effect per Idempotency-Key, so that a report may be sent again."""
    decisions_per_minute: Annotated[int, Field(ge=1, le=1000)] = 30
    """/approve, /revoke and /cancel of one operator."""
    looks_per_minute: Annotated[int, Field(ge=1, le=1000)] = 10
    """/status and /help of one operator."""
    questions_daily: Annotated[int, Field(ge=1, le=1_000_000)] = 50
    questions_pending: Annotated[int, Field(ge=1, le=100_000)] = 5
    """Questions of one operator that wait at one time."""

    @property
    def idempotent(self) -> bool:
        """Whether a report that is sent again has one effect."""
        return self.kind == "outbox" or (self.kind == "webhook" and self.webhook_idempotent)


class ShopConfig(_Table):
    """A whole ``shop.toml``."""

    shop: Shop
    brief: Brief | None = None
    """None: no morning brief by the clock."""
    product: Annotated[tuple[Product, ...], Field(min_length=1, max_length=200, strict=False)]
    limits: TurnLimits = TurnLimits()
    intake: IntakeLimits = IntakeLimits()
    model: ModelTable = ModelTable()
    spending: Spending | None = None
    operators: Operators = Operators()
    recovery: Recovery = Recovery()
    channel: ChannelTable = ChannelTable()

    @model_validator(mode="after")
    def _skus_are_unique(self) -> "ShopConfig":
        skus = [product.sku for product in self.product]
        if twice := sorted({sku for sku in skus if skus.count(sku) > 1}):
            raise ValueError(f"product.sku: {', '.join(twice)} is there twice")
        return self

    @property
    def policy(self) -> Policy:
        """The rules for spending; without a spending table they allow nothing."""
        if self.spending is None:
            return Policy(operators=self.operators.allowed)
        return Policy(
            currency=self.spending.currency,
            target=self.spending.target,
            ceiling_cents=self.spending.ceiling_cents,
            allowance_cents=self.spending.allowance_cents,
            operators=self.operators.allowed,
        )

    def find(self, sku: str) -> Product | None:
        """The catalogue's line for a sku, or None."""
        return next((product for product in self.product if product.sku == sku), None)


def sample() -> str:
    """The text of the sample ``shop.toml`` that ships with the package."""
    return resources.files("standfast.shop").joinpath("sample.toml").read_text(encoding="utf-8")


def load(path: Path) -> ShopConfig:
    """Read and check one ``shop.toml``; ConfigurationInvalid names the field or line."""
    try:
        with path.open("rb") as file:
            raw = file.read(MAX_BYTES + 1)
    except OSError as error:
        raise ConfigurationInvalid(f"{path.name} cannot be read: {error.strerror}") from error
    if len(raw) > MAX_BYTES:
        raise ConfigurationInvalid(f"{path.name} is larger than {MAX_BYTES} bytes")
    try:
        return parse(raw.decode("utf-8"))
    except UnicodeDecodeError as error:
        raise ConfigurationInvalid(f"{path.name} is not UTF-8 at byte {error.start}") from error
    except ConfigurationInvalid as error:
        raise ConfigurationInvalid(f"{path.name}: {error}") from error


def parse(text: str) -> ShopConfig:
    """Check the text of a ``shop.toml``."""
    try:
        tables = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise ConfigurationInvalid(f"not TOML: {error}") from error
    try:
        return ShopConfig.model_validate(tables)
    except ValidationError as error:
        raise ConfigurationInvalid("; ".join(_problems(error, tables))) from error


def _problems(error: ValidationError, tables: dict[str, Any]) -> list[str]:
    problems = []
    for problem in error.errors(include_url=False, include_input=False, include_context=False):
        field = ".".join(map(str, problem["loc"]))
        message = problem["msg"].removeprefix("Value error, ")
        if problem["type"] == "extra_forbidden":
            message = "unknown field"
        elif problem["type"] == "missing":
            message = "required and not there"
        problems.append(f"{field}: {message}{_whose(tables, problem['loc'])}" if field else message)
    return problems


def _whose(tables: dict[str, Any], place: tuple[int | str, ...]) -> str:
    """The sku of the product that a problem is about, as a person finds it in the file."""
    match place:
        case ("product", int(index), *_):
            product = tables["product"][index]
            sku = product.get("sku") if isinstance(product, dict) else None
            return f" (product {sku})" if isinstance(sku, str) and _SKU.fullmatch(sku) else ""
    return ""
