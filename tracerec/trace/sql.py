"""Questions in SQL about the tidy table, answered by DuckDB, which can reach nothing else."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from tracerec.errors import MissingExtra, SelectionError
from tracerec.trace.columns import well_formed
from tracerec.trace.frames import arrow_table, nullable
from tracerec.trace.tables import STATISTICS

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from types import ModuleType

    import pandas as pd

__all__ = ["run"]

_SETTINGS = {
    "enable_external_access": "false",  # no file, no extension
    "python_enable_replacements": "false",  # no variable of the program
    "autoload_known_extensions": "false",
    "autoinstall_known_extensions": "false",
    "allow_community_extensions": "false",
    "temp_directory": "",
    "lock_configuration": "true",
}


def run(query: str, path: str, table: Callable[[Sequence[str]], pd.DataFrame]) -> pd.DataFrame:
    """Returns what a query gives; `tracerec.trace.conversions.TraceConversions.sql` says of what.

    Args:
        query: the query.
        path: the trace's, for messages.
        table: returns the tidy table with some statistics.

    Raises:
        SelectionError: DuckDB refuses the query.
        MissingExtra: DuckDB is not installed.
    """
    duckdb = _duckdb()
    # As the texts of the table are, so that a name is found as it was recorded.
    query = well_formed(query)
    with duckdb.connect(":memory:", config=_SETTINGS) as connection:
        stats = _mentioned(connection, query, path)
        found = arrow_table(table(stats), zone=False)
        connection.register("records", found)
        try:
            result = connection.sql(query)
            if result is None:
                message = "it gives no rows; ask with SELECT, FROM, DESCRIBE or SUMMARIZE"
                raise _refused(message, path, found.column_names)
            answer = result.to_arrow_table()
        except duckdb.Error as error:
            raise _refused(error, path, found.column_names) from error
    return nullable(answer)


def _refused(reason: object, path: str, columns: Sequence[str]) -> SelectionError:
    # What follows the empty line is the query, with a mark.
    text = " ".join(str(reason).split("\n\n")[0].split())
    message = f"{path}: the query cannot be answered: {text}; the table records has the columns {', '.join(columns)}"
    return SelectionError(message, choices=tuple(columns))


def _mentioned(connection: Any, query: str, path: str) -> tuple[str, ...]:
    """Returns the statistics that a query may need; all of them where that cannot be told."""
    ((text,),) = connection.execute("select json_serialize_sql(?)", [query]).fetchall()
    tree = json.loads(text)
    if tree["error"]:
        if tree.get("error_type") == "parser":
            raise _refused(tree["error_message"], path, ("tap", "leaf", "step", "value", *STATISTICS, "..."))
        # It is no SELECT.
        return STATISTICS
    names: set[str] = set()
    for node in _nodes(tree["statements"]):
        if node.get("class") == "STAR" or node.get("type") == "SHOW_REF":
            return STATISTICS
        names.update(str(name).lower() for name in node.get("column_names") or ())
        names.update(str(name).lower() for name in node.get("using_columns") or ())
        if node.get("ref_type") == "NATURAL":
            return STATISTICS
    return tuple(name for name in STATISTICS if name in names)


def _nodes(tree: Any) -> Iterator[dict[str, Any]]:
    waiting = [tree]
    while waiting:
        node = waiting.pop()
        if isinstance(node, dict):
            yield node
            waiting.extend(node.values())
        elif isinstance(node, list):
            waiting.extend(node)


def _duckdb() -> ModuleType:
    try:
        import duckdb
    except ImportError as error:
        message = "SQL needs DuckDB, which is not installed: pip install 'tracerec[sql]'"
        raise MissingExtra(message, extra="sql") from error
    return duckdb
