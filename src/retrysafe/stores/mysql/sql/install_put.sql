-- Store the name of the installation, unless it has one.
INSERT /* or nothing */ INTO {meta} (name, value) VALUES ('install', :value)
