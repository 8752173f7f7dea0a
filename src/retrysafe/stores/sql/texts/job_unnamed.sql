-- How many jobs belong to no application.
SELECT count(*) FROM {outbox} WHERE namespace = ''
