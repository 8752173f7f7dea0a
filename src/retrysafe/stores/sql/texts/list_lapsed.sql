-- A page of open records, or of those whose lease is over. They are few among many: a dialect replaces this text if its planner would read
-- all ids.
SELECT {columns} FROM {keys} WHERE {where} ORDER BY id LIMIT :limit
