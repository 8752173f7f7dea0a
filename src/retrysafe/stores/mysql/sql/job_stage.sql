-- A job, once: its id is made of the run and the step, so a step that is tried again stages the same job.
INSERT /* or nothing */ INTO {outbox}
    (id, topic, payload, order_key, created, attempts, due, token, take, dead, error, namespace)
VALUES (:id, :topic, :payload, :order_key, {now}, 0, {now}, {empty}, 0, 0, '', :namespace)
