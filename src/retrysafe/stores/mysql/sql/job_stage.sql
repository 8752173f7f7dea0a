-- Insert a job once. Its id is derived from the run and the step, so a step that runs again stages the same job.
INSERT /* or nothing */ INTO {outbox}
    (id, topic, payload, order_key, created, attempts, due, token, take, dead, error, namespace)
VALUES (:id, :topic, :payload, :order_key, {now}, 0, {now}, {empty}, 0, 0, '', :namespace)
