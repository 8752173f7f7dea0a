-- Write the id of this installation once. A second writer keeps the first id.
INSERT /* or nothing */ INTO {meta} (name, value) VALUES ('install', :value)
