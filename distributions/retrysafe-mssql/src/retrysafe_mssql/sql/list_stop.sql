-- The id that a page ends at which examines so many records.
SELECT id FROM {keys} WHERE id > :after ORDER BY id OFFSET :skip ROWS FETCH NEXT 1 ROWS ONLY
