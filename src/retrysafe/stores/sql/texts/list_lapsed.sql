-- A page of records whose lease is over. They are few among many: a dialect replaces this text if its planner would read
-- all ids.
SELECT {columns} FROM {keys} WHERE {where} ORDER BY id LIMIT :limit
