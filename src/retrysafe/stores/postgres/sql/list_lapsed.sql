-- A page of records whose lease is over. MATERIALIZED keeps the planner from reading all ids because of the order.
WITH lapsed AS MATERIALIZED (SELECT id FROM {keys} WHERE {where}),
page AS MATERIALIZED (SELECT id FROM lapsed ORDER BY id LIMIT :limit)
SELECT {columns} FROM {keys} WHERE id IN (SELECT id FROM page) ORDER BY id
