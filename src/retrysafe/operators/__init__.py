"""What operators do, as functions: look, decide, act with an audit row. The command line and the console call them.
They print nothing and read no arguments."""
