-- The records of a batch whose rows are not what was asked for, and the time of the read.
SELECT {now}, {columns} FROM {keys} FORCE INDEX (PRIMARY) WHERE id IN ({ids})
