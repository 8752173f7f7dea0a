-- A job belongs to the namespace that staged it. Jobs of the release before have none (''), also those that it stages while
-- it still runs beside this one. `deliveries` counts the deliveries that began; `attempts` is the count of that release.
ALTER /* or nothing */ TABLE {outbox}
    ADD COLUMN namespace varchar(255) NOT NULL DEFAULT '',
    ADD COLUMN deliveries integer NOT NULL DEFAULT 0,
    ADD KEY `{prefix}_lanes` (namespace, dead, topic(64)),
    ADD KEY `{prefix}_turns` (namespace, order_key, sequence);

-- Records that were released at a recovery point are unfinished work, and few among the released ones. The column is
-- computed when it is read, and only its index is stored.
ALTER /* or nothing */ TABLE {keys}
    ADD COLUMN resting tinyint GENERATED ALWAYS AS (CASE WHEN state = 'released' AND length(point) > 0 THEN 1 END) VIRTUAL,
    ADD KEY `{prefix}_resting` (resting);
