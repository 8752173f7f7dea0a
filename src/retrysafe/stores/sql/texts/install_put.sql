-- Store the name of the installation, unless it has one.
INSERT INTO {meta} (name, value) VALUES ('install', :value) ON CONFLICT (name) DO NOTHING
