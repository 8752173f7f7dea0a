-- Named once; whoever comes second keeps the first one's name.
INSERT INTO {meta} (name, value) VALUES ('install', :value) ON CONFLICT (name) DO NOTHING
