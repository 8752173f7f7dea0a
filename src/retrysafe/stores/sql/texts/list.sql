-- A page of records in the order of their ids. plans.py fills {where} with fixed fragments.
SELECT {columns} FROM {keys} WHERE {where} ORDER BY id LIMIT :limit
