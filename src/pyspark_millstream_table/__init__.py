"""Found by Spark on its own: `format("millstream-table")`."""
