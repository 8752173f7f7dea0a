-- A page of records in the order of their ids. {where} is built from fixed fragments (plans.py).
SELECT TOP (:limit) {columns} FROM {keys} WHERE {where} ORDER BY id
