-- Many records at once: what a statement costs here is its preparation.
SELECT {columns} FROM {keys} WHERE id IN (SELECT unnest(:ids))
