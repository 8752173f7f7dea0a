-- A page of records whose lease has lapsed.
SELECT TOP (:limit) {columns} FROM {keys} WHERE {where} ORDER BY id
