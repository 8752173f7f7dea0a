-- A page of records whose lease is over. The optimizer would read all ids because of the order.
SELECT {columns} FROM {keys} IGNORE INDEX (PRIMARY) WHERE {where} ORDER BY id LIMIT :limit
