"""Used by every package: files, locks, records, tables, progress, and the loading of the compiled library."""
