"""`standfast schema`: the JSON Schema of everything that `--json` prints."""

import json
from difflib import get_close_matches
from typing import Annotated

import typer
from pydantic import BaseModel

from standfast.cli.common import current, examples, group, table, write, write_json
from standfast.cli.schemas import PUBLISHED, load
from standfast.errors import BadInput

app = group("The JSON Schema of what a command prints or reads.")


class SchemaList(BaseModel):
    """The names that `standfast schema NAME` knows."""

    schemas: list[str]


@app.command(epilog=examples("standfast schema", "standfast schema health"))
def schema(
    ctx: typer.Context,
    name: Annotated[str | None, typer.Argument(help="A published name; without one, the names.")] = None,
) -> None:
    """Print the JSON Schema of a published model, or the names of all."""
    if name is None:
        if current(ctx).json:
            write_json(SchemaList(schemas=sorted(PUBLISHED)))
        else:
            table(["SCHEMA"], [[known] for known in sorted(PUBLISHED)])
        return
    if name not in PUBLISHED:
        near = ", ".join(get_close_matches(name, PUBLISHED)) or "see `standfast schema`"
        raise BadInput(f"no schema is named {name!r}: {near}")
    write(json.dumps(load(name).model_json_schema(), indent=None if current(ctx).json else 2))
