"""Used by every room: files, locks, records, tables, progress, and the loading of the compiled library."""
