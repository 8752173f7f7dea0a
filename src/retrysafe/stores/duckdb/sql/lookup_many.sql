-- Read many records by one statement: preparing a statement is most of its cost in DuckDB.
SELECT {columns} FROM {keys} WHERE id IN (SELECT unnest(:ids))
