"""The rows of a file of any kind, in parts of a bounded size."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pyarrow.feather
import pyarrow.parquet as pq
import pytest

from streamdedup.files.paths import Kind
from streamdedup.files.sources import examine, read_rows
from streamdedup.settings.load import load_settings

TEXTS = [f"text {number}" for number in range(25)]
TABLE = pa.table({"id": list(map(str, range(25))), "text": TEXTS})


@pytest.mark.parametrize("kind", [Kind.PARQUET, Kind.ARROW, Kind.CSV])
def test_rows_come_in_parts(kind: Kind, tmp_path: Path) -> None:
    """Two readers of the same rows get the same parts."""
    path = tmp_path / "rows"
    if kind is Kind.PARQUET:
        pq.write_table(TABLE, path)
    elif kind is Kind.ARROW:
        pyarrow.feather.write_feather(TABLE, path, compression="uncompressed")
    else:
        path = path.with_suffix(".csv")
        path.write_text("id,text\n" + "".join(f"{row},text {row}\n" for row in range(25)) + "\n\n")
    settings = load_settings(batch={"documents": 10})
    sources = examine([str(path)], settings)
    assert sources.kinds == (kind,)
    parts = list(read_rows(str(path), kind, settings, sources, sources))
    assert [len(first.fields.texts) for first, _ in parts] == [10, 10, 5]
    for rows in zip(*parts, strict=True):
        texts = [
            text.decode()
            for each in rows
            if each is not None
            for text in each.fields.texts.tolist()
        ]
        assert texts == TEXTS
    [(_, nothing), *_] = read_rows(str(path), kind, settings, sources, None)
    assert nothing is None
