-- The name that the installation got when its tables were created.
SELECT value FROM {meta} WHERE name = 'install'
