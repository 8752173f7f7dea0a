-- Namespaces are walls: a job belongs to the application that staged it. What a release before staged has none (''), and
-- so has what one stages that still runs beside. `deliveries` counts what was begun; `attempts` is the release before's.
ALTER TABLE {outbox} ADD namespace nvarchar(255) COLLATE {collation} NOT NULL DEFAULT '', deliveries int NOT NULL DEFAULT 0;

CREATE INDEX [{prefix}_lanes] ON {outbox} (namespace, dead, sequence);

CREATE INDEX [{prefix}_turns] ON {outbox} (namespace, order_key, sequence);
