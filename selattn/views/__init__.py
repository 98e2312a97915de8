"""From records to tables and figures."""
