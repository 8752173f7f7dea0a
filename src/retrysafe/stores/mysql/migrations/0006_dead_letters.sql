-- For people: dead letters, in their order, among any number of jobs that wait.
ALTER /* or nothing */ TABLE {outbox}
    ADD KEY `{prefix}_dead` (dead, sequence);
