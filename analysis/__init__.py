"""`analyze`: turns bundles into tables, statistics, rooflines and a report."""
