"""Our tables in the project's own database. Each file has its twin in stores/<name>/migrations, whose SQL it runs."""
