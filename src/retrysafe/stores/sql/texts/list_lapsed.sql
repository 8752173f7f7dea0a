-- The same for those whose lease is over. Few among many: where a planner would walk all ids, a dialect says otherwise.
SELECT {columns} FROM {keys} WHERE {where} ORDER BY id LIMIT :limit
