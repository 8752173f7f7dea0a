-- A page of records whose lease has lapsed. The `+` keeps the planner from using the order of ids as its index.
SELECT {columns} FROM {keys} WHERE +{where} ORDER BY +id LIMIT :limit
