"""What the SQL stores share: names, rows, statements, plans, pools and migrations. A dialect has what differs."""
