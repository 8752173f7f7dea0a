-- The same for those whose lease is over. `+` keeps the planner from walking all ids because of the order.
SELECT {columns} FROM {keys} WHERE +{where} ORDER BY +id LIMIT :limit
