"""What every room needs and none owns: files, locks, records, progress, suggestions, the compiled library's loading."""
