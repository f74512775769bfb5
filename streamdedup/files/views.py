"""*Blocking* (imports pyarrow when it is used). Views of text, which pyarrow cannot filter.

Polars writes texts as views. pyarrow has no kernels to select some of them, and writes all bytes
behind the views of a slice. So rows become plain texts first, and views again when they are
written.
"""

from __future__ import annotations

from typing import Any

from streamdedup.engine.arrow import load


def plain(schema: Any) -> Any:
    """Return a schema with large strings and large binaries instead of views."""
    fields = [field.with_type(_plain_type(field.type)) for field in schema]
    return load().schema(fields, schema.metadata)


def written(schema: Any) -> Any:
    """Return a schema as files can hold it: a dictionary of views is one of plain texts."""
    is_dictionary = load().types.is_dictionary
    fields = [
        field.with_type(_plain_type(field.type)) if is_dictionary(field.type) else field
        for field in schema
    ]
    return load().schema(fields, schema.metadata)


def as_plain(table: Any) -> Any:
    """Return a table without views."""
    schema = plain(table.schema)
    if schema.equals(table.schema):
        return table
    is_dictionary = load().types.is_dictionary
    for number, field in enumerate(schema):
        if is_dictionary(field.type) and field.type != table.schema.field(number).type:
            chunks = [_plain_dictionary(chunk, field.type) for chunk in table.column(number).chunks]
            table = table.set_column(number, field, load().chunked_array(chunks, field.type))
    return table.cast(schema)


def _plain_type(kind: Any) -> Any:
    """Return a type whose parts are no views, as far as pyarrow casts them."""
    arrow = load()
    types, found = arrow.types, kind
    if types.is_string_view(kind):
        found = arrow.large_string()
    elif types.is_binary_view(kind):
        found = arrow.large_binary()
    elif types.is_dictionary(kind):
        found = arrow.dictionary(kind.index_type, _plain_type(kind.value_type), kind.ordered)
    elif types.is_struct(kind):
        found = arrow.struct([field.with_type(_plain_type(field.type)) for field in kind])
    elif types.is_map(kind):
        found = arrow.map_(_plain_type(kind.key_type), _plain_type(kind.item_type))
    elif types.is_list(kind) or types.is_large_list(kind) or types.is_fixed_size_list(kind):
        item = kind.value_field.with_type(_plain_type(kind.value_type))
        if types.is_fixed_size_list(kind):
            return arrow.list_(item, kind.list_size)
        found = arrow.large_list(item) if types.is_large_list(kind) else arrow.list_(item)
    # An equal type may lack details, such as the names in a map.
    return kind if found.equals(kind) else found


def _plain_dictionary(chunk: Any, kind: Any) -> Any:
    dictionary = chunk.dictionary.cast(kind.value_type)
    return load().DictionaryArray.from_arrays(chunk.indices, dictionary, ordered=kind.ordered)
