-- The same for those whose lease is over.
SELECT TOP (:limit) {columns} FROM {keys} WHERE {where} ORDER BY id
