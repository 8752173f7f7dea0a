"""What the SQL stores share: names, rows, statements, plans and migrations. A dialect fills in the rest."""
