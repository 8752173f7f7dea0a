-- Namespaces are walls: a job belongs to the application that staged it. What a release before staged has none (''), and
-- so has what one stages that still runs beside. `deliveries` counts what was begun; `attempts` is the release before's.
ALTER /* or nothing */ TABLE {outbox}
    ADD COLUMN namespace varchar(255) NOT NULL DEFAULT '',
    ADD COLUMN deliveries integer NOT NULL DEFAULT 0,
    ADD KEY `{prefix}_lanes` (namespace, dead, topic(64)),
    ADD KEY `{prefix}_turns` (namespace, order_key, sequence);

-- What was released at a recovery point is unfinished work, and rare among what was released. The column is computed
-- where it is read, and only its index is stored.
ALTER /* or nothing */ TABLE {keys}
    ADD COLUMN resting tinyint GENERATED ALWAYS AS (CASE WHEN state = 'released' AND length(point) > 0 THEN 1 END) VIRTUAL,
    ADD KEY `{prefix}_resting` (resting);
