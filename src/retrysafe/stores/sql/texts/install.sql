-- The name this installation was given when its tables were made.
SELECT value FROM {meta} WHERE name = 'install'
