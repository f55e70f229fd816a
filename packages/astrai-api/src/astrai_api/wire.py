"""Building blocks of the request models of all protocols.

Clients send explicit nulls for what they leave out and fields nobody has heard of: a null is the
default, and what a model does not declare is kept aside in ``model_extra``.
"""

from typing import Annotated, Any, TypeVar

from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    GetJsonSchemaHandler,
    StrictBool,
    model_validator,
)
from pydantic.json_schema import JsonSchemaValue
from pydantic_core import PydanticCustomError
from pydantic_core.core_schema import CoreSchema

T = TypeVar("T")

_BOUNDS = {"ge": "minimum", "gt": "exclusiveMinimum", "le": "maximum"}


class _NullIsDefault:
    """Documents that null is accepted; :class:`WireModel` has dropped it before validation."""

    def __get_pydantic_json_schema__(
        self, core_schema: CoreSchema, handler: GetJsonSchemaHandler
    ) -> JsonSchemaValue:
        return {"anyOf": [handler(core_schema), {"type": "null"}]}


def _a_number(value: Any) -> Any:
    if isinstance(value, bool | str):
        raise PydanticCustomError("number_type", "Input should be a number")
    return value


NotEmpty = Field(json_schema_extra={"minItems": 1})
"""Documents that a list needs an item; that is checked later, as it is no fault of form."""

Nullable = Annotated[T, _NullIsDefault()]
Int = Annotated[int, BeforeValidator(_a_number)]
Float = Annotated[float, BeforeValidator(_a_number)]
Bool = StrictBool
Int64 = Annotated[Int, Field(ge=-(2**63), le=2**63 - 1)]


def _rename_bounds(schema: Any) -> None:
    if isinstance(schema, dict):
        for word in _BOUNDS.keys() & schema.keys():
            schema[_BOUNDS[word]] = schema.pop(word)
        for part in schema.values():
            _rename_bounds(part)
    elif isinstance(schema, list):
        for part in schema:
            _rename_bounds(part)


class WireModel(BaseModel):
    """A JSON object as clients send it."""

    model_config = ConfigDict(extra="allow", frozen=True)

    @classmethod
    def __get_pydantic_json_schema__(
        cls, core_schema: CoreSchema, handler: GetJsonSchemaHandler
    ) -> JsonSchemaValue:
        """Name bounds as JSON Schema does: behind a validator pydantic keeps its own words."""
        schema = handler(core_schema)
        for field in handler.resolve_ref_schema(schema)["properties"].values():
            _rename_bounds(field)
        return schema

    @model_validator(mode="before")
    @classmethod
    def _null_is_default(cls, data: Any) -> Any:
        if isinstance(data, dict):
            return {name: value for name, value in data.items() if value is not None}
        return data
