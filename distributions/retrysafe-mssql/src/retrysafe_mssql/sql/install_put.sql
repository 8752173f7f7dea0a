-- Write the id of this installation once. A second writer keeps the first id, also if it comes in between.
INSERT /* or nothing */ INTO {meta} (name, value)
SELECT 'install', :value WHERE NOT EXISTS (SELECT 1 FROM {meta} WHERE name = 'install')
