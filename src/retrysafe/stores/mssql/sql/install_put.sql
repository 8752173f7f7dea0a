-- Named once; whoever comes second keeps the first one's name.
INSERT /* or nothing */ INTO {meta} (name, value) VALUES ('install', :value)
